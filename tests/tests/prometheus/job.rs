//! A replayed job: executors without processes, with what the marker and the kernel side would report of them.

use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_daemon::shared::Shared;
use smtt_machine::clock::now_boot_ns;
use smtt_model::decode::{Event, ExecutorDescribed, Fact, RddDescribed, StageDescribed};
use smtt_model::readings::Readings;

use crate::{EXECUTORS, RDDS};

/// Executors without processes: what the marker and the kernel side would report of them.
pub(crate) struct Job<'a> {
    pub(crate) shared: &'a Shared,
    /// All page faults, by application.
    pub(crate) faults: Vec<u64>,
}

impl Job<'_> {
    pub(crate) fn told(&self, executor: u64, fact: Fact) {
        self.shared.state().apply(Event {
            time_ns: now_boot_ns(),
            executor,
            pid: executor as u32,
            tid: 1,
            uid: 1000,
            fact,
        });
    }

    pub(crate) fn executor(&mut self, executor: u64, application: u64) {
        let said = ExecutorDescribed {
            application_id: format!("app-{application}"),
            application_name: "short queries".to_owned(),
            executor_id: executor.to_string(),
            ..ExecutorDescribed::default()
        };
        self.told(executor, Fact::ExecutorDescribed(Box::new(said)));
        self.faults.resize(application as usize + 1, 0);
    }

    pub(crate) fn rdd(&self, executor: u64, rdd_id: u32, name: &str, call_site: &str) {
        let said = RddDescribed {
            rdd_id,
            name: name.to_owned(),
            call_site: call_site.to_owned(),
            ..RddDescribed::default()
        };
        self.told(executor, Fact::RddDescribed(Box::new(said)));
    }

    /// Page faults of an RDD, as the kernel side counts them.
    pub(crate) fn faults(
        &mut self,
        executor: u64,
        application: u64,
        rdd: u32,
        growth: FaultCounters,
    ) {
        self.faults_in(executor, application, None, rdd, growth);
    }

    fn faults_in(
        &mut self,
        executor: u64,
        application: u64,
        stage: Option<u32>,
        rdd: u32,
        growth: FaultCounters,
    ) {
        let context = ContextKey {
            executor,
            rdd_plus_one: rdd + 1,
            stage_id: stage.unwrap_or_default(),
            ..ContextKey::default()
        };
        let more = growth.read + growth.write;
        self.faults[application as usize] += more;
        let mut state = self.shared.state();
        let mut counters: ExecutorCounters = state.executors()[&executor].counters;
        counters.attributed.read += growth.read;
        counters.attributed.write += growth.write;
        counters.unattributed[0].read += 1;
        let readings = Readings {
            contexts: vec![(context, growth)],
            executors: vec![(executor, counters)],
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        state.add(&readings, now_boot_ns());
    }

    /// A query: new RDDs of the same lines of the program.
    pub(crate) fn query(&mut self, query: u32) {
        let executor = 1 + u64::from(query) % EXECUTORS;
        for number in 0..RDDS {
            let id = 10 + query * RDDS + number;
            let (name, line) = (
                ["MapPartitionsRDD", "ShuffledRowRDD"][number as usize % 2],
                number / 4,
            );
            self.rdd(
                executor,
                id,
                name,
                &format!("collect at Queries.scala:{line}"),
            );
            let growth = FaultCounters {
                read: u64::from(number % 3),
                write: 40 + u64::from(query % 7),
                ..FaultCounters::default()
            };
            self.faults(executor, 0, id, growth);
        }
    }

    /// A run of an SQL query in a stage of its own, which the driver describes after the first counts.
    pub(crate) fn sql_query(&mut self, run: u32, text: &str) {
        let executor = 1 + u64::from(run) % EXECUTORS;
        let rdds = 10 + run * RDDS..10 + (run + 1) * RDDS;
        for id in rdds {
            let line = id % 4;
            self.rdd(
                executor,
                id,
                "MapPartitionsRDD",
                &format!("show at Q.scala:{line}"),
            );
            let growth = FaultCounters {
                write: 40 + u64::from(id % 7),
                ..FaultCounters::default()
            };
            self.faults_in(executor, 0, Some(run), id, growth);
        }
        let said = StageDescribed {
            stage_id: run,
            sql_execution_id: Some(u64::from(run)),
            sql_description: text.to_owned(),
            ..StageDescribed::default()
        };
        self.told(executor, Fact::StageDescribed(said));
    }
}
