//! Documents of one application: its executors, their memory, stages, RDDs, places, deaths and findings, as this worker
//! knows them now.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::json;
use smtt_machine::clock::{boot_id, now_boot_ns, now_unix_ns};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{ApplicationKey, Filter, PagesBy};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::State;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{REST, ended};

use crate::advice::advice;
use crate::parts::each_rows;
use crate::shared::Shared;

/// Bytes of an application's documents.
const BYTES: usize = 8 << 20;
/// Reports of deaths of an application.
const DEATHS: usize = 64;

/// What the document about the worker reports.
pub struct About<'a> {
    /// The application.
    pub application: &'a ApplicationKey,
    /// Executors whose last documents are in a file of their own.
    pub ended: &'a BTreeSet<u64>,
    /// Documents that had no room there.
    pub left_out: u64,
    /// The worker's host.
    pub host: &'a str,
    /// Start of the daemon in milliseconds since 1970.
    pub run_ms: u64,
    /// Tasks that are written.
    pub tasks: u64,
    /// Tasks that had no room while they waited for the store.
    pub tasks_lost: u64,
    /// Executors that went before their last documents were written.
    pub executors_lost: u64,
    /// Files of this worker that were removed to make room since the daemon's start.
    pub files_removed: u64,
}

/// Documents within [`BYTES`].
struct Documents {
    batch: Batch,
    bytes: usize,
    left_out: u64,
}

impl Documents {
    fn new() -> Self {
        Self {
            batch: Batch::new(&REST),
            bytes: 0,
            left_out: 0,
        }
    }

    fn add(&mut self, kind: &str, id: &str, document: &impl Serialize) {
        let Ok(json) = serde_json::to_string(document) else {
            return;
        };
        self.bytes += json.len();
        if self.bytes > BYTES {
            self.left_out += 1;
            return;
        }
        self.batch
            .push(&[Cell::Text(kind), Cell::Text(id), Cell::Text(&json)]);
    }
}

/// The documents of an application's executors that have ended, and how many had no room. Locks as [`of`] does.
pub fn of_ended(
    shared: &Shared,
    application: &ApplicationKey,
    ended: &BTreeSet<u64>,
) -> (Batch, u64) {
    let making = shared.making();
    let _making = making.blocking_lock();
    let mut documents = Documents::new();
    for key in ended {
        let filter = Filter {
            application: Some(application.clone()),
            key: Some(*key),
            ..Filter::default()
        };
        of_executor(shared, &filter, &mut documents);
    }
    (documents.batch, documents.left_out)
}

/// All other documents of an application. Each listing of each executor locks the state separately. Waits for the large
/// answer that is being made: call it on a thread of its own.
pub fn of(shared: &Shared, about: &About<'_>) -> Batch {
    let making = shared.making();
    let _making = making.blocking_lock();
    let mut documents = Documents::new();
    let filter = Filter {
        application: Some(about.application.clone()),
        ..Filter::default()
    };
    let listing = shared.state().list_executors(&filter);
    let name = listing
        .rows
        .iter()
        .find_map(|row| row.application_name.as_ref());
    let (name, summary) = (name.cloned(), listing.summary);
    deaths(shared, about.application, &mut documents);
    let executors: BTreeSet<u64> = shared.executor_keys().into_iter().gather();
    for key in executors.difference(about.ended) {
        let filter = Filter {
            key: Some(*key),
            ..filter.clone()
        };
        of_executor(shared, &filter, &mut documents);
    }
    // Findings read the surroundings of living processes, within a second.
    for advice in advice(shared, &filter, None).applications {
        documents.add("findings", "", &advice);
    }
    let left_out = documents.left_out + about.left_out;
    let worker = json!({
        "host": about.host,
        "uid": about.application.uid,
        "application_name": name,
        // Times since the machine's start mean nothing after the next one.
        "boot_id": boot_id(),
        "daemon_version": env!("CARGO_PKG_VERSION"),
        "daemon_start_unix_ms": about.run_ms,
        "written_unix_ms": now_unix_ns() / 1_000_000,
        // The same moment on the clock of all times in the documents.
        "written_boot_ns": now_boot_ns(),
        "tasks": about.tasks,
        "tasks_lost": about.tasks_lost,
        "executors_lost": about.executors_lost,
        "documents_left_out": left_out,
        "files_removed": about.files_removed,
        "summary": summary,
    });
    let text = worker.to_string();
    documents
        .batch
        .push(&[Cell::Text("worker"), Cell::Text(""), Cell::Text(&text)]);
    documents.batch
}

fn of_executor(shared: &Shared, filter: &Filter, documents: &mut Documents) {
    fn rows<R>(shared: &Shared, list: impl FnOnce(&State) -> Vec<R>) -> Vec<R> {
        list(&shared.state())
    }
    let id = |who: &smtt_model::rows::ExecutorId| {
        let executor = who.executor_id.as_deref().unwrap_or_default();
        ended::id(executor, who.pid.into())
    };
    for row in rows(shared, |state| state.list_executors(filter).rows) {
        documents.add(ended::EXECUTOR, &id(&row.who), &row);
    }
    for row in rows(shared, |state| state.list_memory(filter).rows) {
        documents.add("memory", &id(&row.who), &row);
    }
    let stages = |state: &State, filter: &Filter| state.list_stages(filter).rows;
    each_rows(shared, filter, State::rows_of_stages, stages, |rows| {
        for row in rows {
            let stage = row.stage_id.zip(row.stage_attempt);
            let stage = stage.map_or(String::new(), |(id, attempt)| format!("{id}.{attempt}."));
            documents.add("stage", &format!("{stage}{}", id(&row.who)), &row);
        }
    });
    let rdds = |state: &State, filter: &Filter| state.list_rdds(filter).rows;
    each_rows(shared, filter, State::rows_of_rdds, rdds, |rows| {
        for row in rows {
            let rdd = row.rdd_id.map_or(String::new(), |id| format!("{id}."));
            documents.add("rdd", &format!("{rdd}{}", id(&row.who)), &row);
        }
    });
    for row in rows(shared, |state| state.list_pages(filter, PagesBy::Rdd).rows) {
        documents.add("places", "", &row);
    }
    for row in rows(shared, |state| state.list_history(filter).rows) {
        documents.add("history", &id(&row.who), &row);
    }
}

/// Reports of deaths: the whole report where it can be read, else its row.
fn deaths(shared: &Shared, application: &ApplicationKey, documents: &mut Documents) {
    let Some(keeper) = shared.keeper() else {
        return;
    };
    let query = ListQuery {
        app: application.id.clone(),
        user: application.uid,
        ..ListQuery::default()
    };
    let rows = keeper.list(&query).rows.into_iter();
    let own = rows.filter(|row| row.who.application() == *application);
    for row in own.take(DEATHS) {
        let query = ListQuery {
            executor: Some(row.id.clone()),
            ..ListQuery::default()
        };
        match keeper.find(&query) {
            Ok(Some(report)) => documents.add("death", &row.id, &*report),
            _ => documents.add("death", &row.id, &row),
        }
    }
}
