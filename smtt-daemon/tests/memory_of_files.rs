//! Rows that are read from files of earlier runs, within the memory that the systemd unit gives the daemon. In a process of
//! its own: what other tests free stays resident.

mod resident;
mod served;

use std::path::Path;

use serde_json::json;
use smtt_daemon::history::Earlier;
use smtt_model::state::Limits;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, REST, Whose, Workers};

use self::resident::{ask_all, figure, peak, shared};
use self::served::served;

/// Memory of two answers at once. The unit's 256 MiB have room for it beside a full state.
const EARLIER_MAX: u64 = 96 << 20;
/// More than the files have.
const BOUNDS: Bounds = Bounds {
    bytes: 1 << 30,
    files: 1000,
};

/// Writes files of an earlier run: as many documents as a file may have, most of whose numbers have one digit.
fn earlier_run(store: &Path, applications: u32) {
    let mut workers = Workers::take(store, "worker-3", 1_000, None, BOUNDS).expect("a store");
    let zeros = vec![0_u8; 16 << 10];
    for number in 0..applications {
        let id = format!("app-{number}");
        let whose = Whose::of(&id, 1000 + number);
        let mut documents = Batch::new(&REST);
        let about = json!({
            "boot_id": smtt_machine::clock::boot_id(),
            "daemon_start_unix_ms": 1_000,
            "written_unix_ms": smtt_machine::clock::now_unix_ns() / 1_000_000,
        });
        let mut push = |kind: &str, id: &str, json: &str| {
            documents.push(&[Cell::Text(kind), Cell::Text(id), Cell::Text(json)]);
        };
        push("worker", "", &about.to_string());
        for row in 0..240 {
            let document = json!({"application_id": id, "pid": row, "points": &zeros});
            push("history", &row.to_string(), &document.to_string());
        }
        let added = workers.add(whose, 0, &documents, &|uid| uid);
        added.expect("written");
    }
}

#[test]
fn what_earlier_runs_wrote_fits_the_memory_of_the_unit() {
    let store = tempfile::tempdir().expect("a folder");
    earlier_run(store.path(), 8);
    let shared = shared(Limits::default());
    let workers = Workers::take(store.path(), "worker-3", 2_000, None, BOUNDS).expect("a store");
    shared.set_earlier(Earlier::find(&workers, 2_000, &|uid| uid));
    let before = figure("VmRSS:");
    served(&shared, |socket, port| {
        let paths = ["/v1/earlier/history", "/v1/history"];
        let answers = ask_all(socket, port, &paths, 4);
        let longest = answers.iter().map(|(_, _, bytes)| *bytes).max();
        for (path, status, bytes) in &answers {
            println!("{path}: {status}, {bytes} bytes");
            assert!(matches!(status, 200 | 503), "{path}: {status}");
        }
        assert!(longest > Some(16 << 20), "{longest:?} bytes are two files");
    });
    println!("before {} MiB, peak {} MiB", before >> 20, peak() >> 20);
    // The state, which is empty here, has its own part.
    assert!(peak() < before + EARLIER_MAX);
}
