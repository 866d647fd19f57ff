//! Wires the stages: ring -> decode -> state, counters -> state, discovery -> probes, and the listeners.
//!
//! One task, the event loop, owns the probes and feeds the state. Its queue from the ring is bounded ([`BATCHES`]);
//! while the queue is full the ring fills up and the kernel side counts what does not fit. Discovery reads `/proc` on
//! threads of its own and attaches the probes of libraries there. The event loop does nothing slow.

mod adoption;
mod executors;
mod followers;
mod resync;
mod searches;
mod unattributed;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use smtt_common::event::RecordHeader;
use smtt_config::Config;
use smtt_machine::calibrate::calibrate;
use smtt_machine::clock::now_boot_ns;
use smtt_machine::doctor;
use smtt_machine::page_walks::PageWalkSettings;
use smtt_machine::proc::{in_first_namespace, thread_exists};
use smtt_model::cpu::{self, describe};
use smtt_model::decode::Fact;
use smtt_model::ledger::{DecodeCounts, SourceCounts};
use smtt_model::readings::Calibration;
use smtt_model::sort::small::Gather as _;
use smtt_model::state::Tick;
use smtt_model::subordinate::SubordinateIds;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::adoption::Adopted;
use self::executors::Executors;
use self::followers::{
    carry_log, follow_libraries, follow_subordinate_ids, spawn_discovery, subordinate_ids,
};
use self::unattributed::Unattributed;
use crate::metrics::{KeyLimits, MetricsSettings, accountant};
use crate::probes::{Probes, TOOLCHAIN};
use crate::progress::Step;
use crate::recorder::{Tap, Trace};
use crate::ring::{self, Record, SourceCounters};
/// What [`run`] fails with where the configuration of a listener is wrong.
pub use crate::server::WebError;
use crate::server::{ControlSocket, Sources, Web, group_id};
use crate::shared::{DaemonInfo, Shared};
use crate::{discover, history, hotness, placement, postmortem, progress, running, server, usage};

/// Batches between the ring and the event loop.
const BATCHES: usize = 16;
/// Time between two reads of the kernel memory of tables and programs.
const MEMORY_EVERY: Duration = Duration::from_secs(60);

/// Longest wait for the writer of trace records to finish its last segments.
const TRACE_FINISH: Duration = Duration::from_secs(10);

/// Loads the files that the configuration names for the metrics port, as the start does.
///
/// # Errors
/// What ends the start with the exit code of a wrong configuration.
pub fn check(config: &Config) -> Result<(), WebError> {
    Web::load(&config.web).map(drop)
}

/// Runs the daemon until `shutdown` completes.
///
/// # Errors
/// When a listener cannot be opened or the kernel side cannot be loaded: the daemon could do nothing useful.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    anyhow::ensure!(
        in_first_namespace(),
        "this pid namespace is not the machine's first, so process ids here are not those of the kernel: {}",
        doctor::PID_NAMESPACE_REMEDY
    );
    let readers = Web::load(&config.web)?;
    // The socket first: it shows whether another daemon is running, before anything is loaded into the kernel.
    let socket = ControlSocket::bind(&config.control.socket, &config.control.group)?;
    let web = TcpListener::bind(config.web.listen_address)
        .await
        .with_context(|| {
            format!(
                "cannot listen on {}: choose another --web.listen-address",
                config.web.listen_address
            )
        })?;
    // Before any event is sampled, while the counters are free.
    let page_walks = config.probes.page_walks.clone();
    let calibration = tokio::task::spawn_blocking(move || calibration(&page_walks)).await?;
    let mut probes = Probes::load(&config.probes)?;
    let libraries = probes.libraries();
    libraries.trust(&config.marker.digests);
    libraries.follow_configured(&config.marker.libraries);
    let info = DaemonInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        kernel_side: TOOLCHAIN.into(),
        telemetry_path: config.web.telemetry_path.clone(),
        metrics: MetricsSettings {
            keys: KeyLimits {
                all: config.series,
                per_application: config.series_per_application,
            },
            by: config.rdds_by,
            scrape_interval: config.web.scrape_interval,
        },
        doctor: doctor::examine,
    };
    let shared = Arc::new(Shared::new(info, config.limits));
    let (ids, mut subordinate_ids) = subordinate_ids().await?;
    set_subordinate_ids(&mut probes, &shared, &subordinate_ids.borrow_and_update());
    log_verdicts(&probes);
    shared.state().set_calibration(calibration);
    shared.set_verdicts(probes.verdicts());

    let (stop, stopped) = watch::channel(false);
    let until_stopped = || server::until_stopped(stopped.clone());
    let mut services = JoinSet::new();
    let sources = Sources::from(Arc::clone(&shared));
    let exporter = Arc::clone(&sources.exporter);
    let served = server::spawn(sources, socket, web, readers, until_stopped)?;
    services.spawn(async move { served.await.context("the listeners' thread crashed")? });
    progress::watch(shared.progress());
    if let Some(log) = probes.take_log() {
        services.spawn(carry_log(log, until_stopped()));
    }
    let (batches, incoming) = mpsc::channel(BATCHES);
    let counters = Arc::new(SourceCounters::default());
    let ring = probes.take_ring()?;
    let (counted, until) = (Arc::clone(&counters), until_stopped());
    services.spawn(async move {
        tokio::select! {
            ended = ring::run(ring, batches, counted) => ended,
            () = until => Ok(()),
        }
    });
    let (found, discovered) = mpsc::channel(4);
    let discoverer = discover::Discoverer::new(Arc::clone(&libraries));
    let hanging = discoverer.hanging();
    spawn_discovery(
        discoverer,
        config.marker.scan_interval,
        found,
        stopped.clone(),
    );
    let owners = libraries.owners();
    follow_libraries(libraries, config.marker.libraries, stopped.clone());
    follow_subordinate_ids(ids, stopped.clone());

    let until = stopped.clone();
    placement::spawn(config.placement, Arc::clone(&shared), move || {
        *until.borrow()
    });
    let until = stopped.clone();
    let tasks = probes.running_tasks()?;
    running::spawn(tasks, config.tick, Arc::clone(&shared), move || {
        *until.borrow()
    });
    let until = stopped.clone();
    usage::spawn(Arc::clone(&shared), move || *until.borrow());
    let until = stopped.clone();
    accountant::spawn(exporter, Arc::clone(&shared), move || *until.borrow());
    let until = stopped.clone();
    let hotness = hotness::spawn(config.hotness, Arc::clone(&shared), move || *until.borrow());

    let mut postmortem = config.postmortem;
    let gid = group_id(&config.control.group).map(nix::unistd::Gid::as_raw);
    postmortem.gid = gid;
    let until = stopped.clone();
    let users = Arc::clone(&owners);
    postmortem::spawn(postmortem, Arc::clone(&shared), users, move || {
        *until.borrow()
    })
    .context("the watcher of deaths cannot be started")?;
    let history = config.history.map(|mut settings| {
        settings.gid = gid;
        let (until, users) = (stopped.clone(), Arc::clone(&owners));
        history::spawn(settings, Arc::clone(&shared), users, move || {
            *until.borrow()
        })
    });
    let history = history.transpose();
    let history = history.context("the writer of the history cannot be started")?;
    let (trace, queue) = match config.trace {
        Some(mut settings) => {
            settings.gid = group_id(&config.control.group).map(nix::unistd::Gid::as_raw);
            let (trace, queue) = Trace::start(settings, owners)?;
            shared.set_trace(Arc::clone(&trace.ledger));
            (Some(trace), Some(queue))
        }
        None => (None, None),
    };
    let tap = Some(Tap::new(queue, Arc::clone(shared.followers())));
    let (adopted, adoptions) = mpsc::channel(4);
    let mut event_loop = EventLoop {
        probes,
        shared,
        counters,
        decoded: DecodeCounts::default(),
        executors: Executors::new(adopted),
        tap,
        memory_read: None,
        hanging,
        unattributed: Unattributed::default(),
        subordinate_ids,
    };
    event_loop.tick();
    event_loop.shared.set_ready(true);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!(socket = %config.control.socket.display(), metrics = %config.web.listen_address, "ready");
    let ended = event_loop
        .work(
            config.tick,
            Incoming {
                batches: incoming,
                discovered,
                adoptions,
            },
            &mut services,
            shutdown,
        )
        .await;

    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let _ = stop.send(true);
    // The writer and the live clients end when the last sender of records is dropped.
    event_loop.tap = None;
    event_loop.shared.followers().close();
    if trace.is_some_and(|trace| !trace.finish(TRACE_FINISH)) {
        tracing::error!("the last trace segments could not be finished: their records are lost");
    }
    // Connections get a moment to finish; then the process ends and with it everything in the kernel.
    let _ = tokio::time::timeout(Duration::from_secs(2), async {
        while services.join_next().await.is_some() {}
        // Give DAMON back to the kernel. If the daemon is killed first, its guard process does it.
        while hotness.as_ref().is_some_and(|thread| !thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The last files of applications that still run.
        while history.as_ref().is_some_and(|thread| !thread.is_finished()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    ended
}

/// Measures what a page walk costs, where estimates need it.
fn calibration(settings: &PageWalkSettings) -> Option<Calibration> {
    let measured = describe(
        &smtt_machine::cpu::of_this_machine(std::path::Path::new("/")),
        &settings.overrides,
    )
    .ok()?;
    let estimates = measured.cores.iter().any(|core| {
        core.pmu_present != Some(false)
            && core
                .plan
                .figures
                .iter()
                .any(|figure| figure.ratio == Some(cpu::Ratio::Estimated))
    });
    if !settings.enabled || !settings.calibrate || !estimates {
        return None;
    }
    match calibrate(&measured) {
        Ok(found) => {
            for line in &found.refused {
                tracing::info!("the cost of a page walk: {line}");
            }
            tracing::info!(read = ?found.read, write = ?found.write, method = found.method, "the cost of a page walk is calibrated");
            Some(found)
        }
        Err(reason) => {
            tracing::warn!("no estimated ratios: {reason}");
            None
        }
    }
}

fn log_verdicts(probes: &Probes) {
    for verdict in probes.verdicts() {
        let (probe, hook, reason) = (&verdict.name, &verdict.hook, &verdict.reason);
        match verdict.verdict {
            VerdictState::Ok => tracing::info!("probe {probe} on {hook}: ok {reason}"),
            VerdictState::NotApplicable => {
                tracing::debug!("probe {probe} on {hook}: not needed, {reason}")
            }
            VerdictState::Unsupported => {
                tracing::warn!("probe {probe} on {hook}: unsupported, {reason}")
            }
            VerdictState::Broken => {
                tracing::error!("probe {probe} on {hook}: broken, {reason}")
            }
        }
    }
}

/// What comes to the event loop.
struct Incoming {
    batches: mpsc::Receiver<Vec<Record>>,
    discovered: mpsc::Receiver<discover::Found>,
    adoptions: mpsc::Receiver<Adopted>,
}

fn set_subordinate_ids(probes: &mut Probes, shared: &Shared, ids: &Arc<SubordinateIds>) {
    if let Err(error) = probes.set_subordinate_ids(ids) {
        tracing::error!("some subordinate ids count as users of their own: {error:#}");
    }
    shared.state().set_subordinate_ids(Arc::clone(ids));
}

/// What the event loop owns.
struct EventLoop {
    probes: Probes,
    shared: Arc<Shared>,
    counters: Arc<SourceCounters>,
    decoded: DecodeCounts,
    executors: Executors,
    tap: Option<Tap>,
    memory_read: Option<Instant>,
    /// Inspections of processes that hang.
    hanging: Arc<AtomicUsize>,
    unattributed: Unattributed,
    subordinate_ids: watch::Receiver<Arc<SubordinateIds>>,
}

impl EventLoop {
    /// Runs until the shutdown, or until a service ends that should not.
    async fn work(
        &mut self,
        tick: Duration,
        mut incoming: Incoming,
        services: &mut JoinSet<anyhow::Result<()>>,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        tokio::pin!(shutdown);
        loop {
            self.shared.progress().enter(Step::Wait);
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                Some(batch) = incoming.batches.recv() => self.take_in(&batch),
                Some(found) = incoming.discovered.recv() => {
                    self.shared.progress().enter(Step::AdoptExecutor);
                    self.executors.begin_adoption(&mut self.probes, found);
                }
                Some(adopted) = incoming.adoptions.recv() => self.adopt(adopted),
                _ = ticks.tick() => {
                    self.tick();
                    let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
                }
                Some(ended) = services.join_next() => {
                    ended.context("a service crashed")??;
                    anyhow::bail!("a service ended by itself");
                }
            }
        }
    }

    /// Decodes a batch of records and applies it to the state. The state is locked only while events are applied.
    fn take_in(&mut self, batch: &[Record]) {
        self.shared.progress().enter(Step::Decode);
        let mut events = Vec::with_capacity(batch.len());
        for Record { header, payload } in batch {
            let event = self.decoded.decode(header, payload);
            match event {
                Ok(event) => {
                    apply_outside(&mut self.executors, &mut self.probes, header, &event.fact);
                    events.push(event);
                }
                Err(error) => tracing::debug!(
                    pid = header.pid,
                    kind = header.kind,
                    "a record is skipped: {error}"
                ),
            }
        }
        // Read after the records arrived and before any is applied, so that no collection up to then is missed.
        self.shared.progress().enter(Step::ReadSlotFiles);
        let executors = events.iter().map(|event| event.executor).gather();
        let (collections, unread) = self.executors.collections(&executors);
        self.shared.progress().enter(Step::Apply);
        let mut state = self.shared.state();
        for executor in unread {
            state.collections_unread(executor);
        }
        for (executor, tracking, begun) in collections {
            state.set_collections(executor, tracking, begun);
        }
        if let Some(tap) = &mut self.tap {
            tap.read_clocks();
        }
        for event in events {
            if let Some(tap) = &mut self.tap {
                tap.record_access(&state, &event);
            }
            state.apply(event);
        }
        if let Some(tap) = &mut self.tap {
            tap.send_batch();
        }
    }

    /// Ends the adoption of a discovered executor, whose library has its probes: adds its rows to the kernel side's
    /// tables, and requests a snapshot.
    fn adopt(&mut self, adopted: Adopted) {
        self.shared.progress().enter(Step::AdoptExecutor);
        let now = now_boot_ns();
        let executor = adopted.executor;
        let Some(request) = self.executors.adopt(&mut self.probes, adopted, now) else {
            return;
        };
        if let Some(slots) = self.executors.slots(executor) {
            self.shared.lend_slots(executor, slots);
        }
        if let Some(request) = request {
            self.shared.state().resync_requested(executor, request, now);
        }
    }

    /// The verdicts of the probes and of discovery.
    fn verdicts(&self) -> Vec<Verdict> {
        let mut all = self.probes.verdicts();
        let hanging = self.hanging.load(Ordering::Relaxed) + self.executors.hanging_adoptions();
        if hanging > 0 {
            // Any user can cause this, so it does not make the daemon degraded.
            all.push(Verdict {
                name: "marker".into(),
                hook: "discovery".into(),
                verdict: VerdictState::NotApplicable,
                reason: format!(
                    "the inspection of {hanging} processes hangs; the log names them, and other processes are inspected without them"
                ),
            });
        }
        all.extend(self.unattributed.verdict());
        let missed = self.executors.missed_readings();
        if missed > 0 {
            all.push(Verdict {
                name: "marker".into(),
                hook: "slot files".into(),
                verdict: VerdictState::NotApplicable,
                reason: format!(
                    "{missed} readings of executors' slot files did not come in time since the start; these executors keep their last counts"
                ),
            });
        }
        all
    }

    /// Reads the kernel side's counters, then the markers'. In this order the ledger raises no false alarm.
    fn tick(&mut self) {
        let source = SourceCounts {
            taken: self.counters.read.load(Ordering::Relaxed),
            malformed: self.counters.malformed.load(Ordering::Relaxed),
        };
        let now = now_boot_ns();
        if self.subordinate_ids.has_changed().unwrap_or(false) {
            let ids = Arc::clone(&self.subordinate_ids.borrow_and_update());
            set_subordinate_ids(&mut self.probes, &self.shared, &ids);
        }
        let running = self.shared.state().task_threads();
        self.shared.progress().enter(Step::ReadCounters);
        match self.probes.readings() {
            Ok(readings) => {
                let time = Instant::now().into_std();
                let rows = self.probes.thread_rows();
                let lines = self.unattributed.see(&running, rows, time, thread_exists);
                for (executor, line) in lines {
                    self.executors.warn_about(executor, time, &line);
                }
                // Files are read before the state is locked.
                self.shared.progress().enter(Step::ReadSlotFiles);
                let slots = self.executors.read_slots();
                let wanted = self.shared.state().resyncs_wanted();
                let requests = self.executors.request_lost_facts(&readings, &wanted, now);
                let dead = self.executors.dead();
                for executor in &readings.gone {
                    self.executors.forget(*executor);
                }
                let tick = Tick {
                    readings,
                    slots: slots.counters,
                    collections: slots.collections,
                    unread: slots.unread,
                    requests,
                    dead,
                };
                self.shared.progress().enter(Step::ApplyReadings);
                let forgotten = self.shared.state().take_in(&tick, now);
                self.shared.progress().enter(Step::ForgetExecutors);
                for executor in forgotten {
                    self.executors.evicted(executor);
                    self.unattributed.forget(executor);
                    if let Err(error) = self.probes.leave_executor(executor) {
                        tracing::warn!("rows of a dead executor stay in the kernel: {error:#}");
                    }
                }
            }
            Err(error) => tracing::error!("the counters cannot be read: {error:#}"),
        }
        self.shared.progress().enter(Step::Account);
        // A page-walk event may fail or recover at any time.
        self.shared.set_verdicts(self.verdicts());
        let unknown = self.probes.unknown_libraries();
        self.shared.set_unknown_libraries(unknown as u64);
        self.shared.tick(source, &self.decoded);
        if self
            .memory_read
            .is_none_or(|read| read.elapsed() >= MEMORY_EVERY)
        {
            self.memory_read = Some(Instant::now());
            self.shared
                .set_bpf_memory_bytes(self.probes.bpf_memory_bytes());
        }
    }
}

/// Applies what a fact changes outside the state.
fn apply_outside(
    executors: &mut Executors,
    probes: &mut Probes,
    header: &RecordHeader,
    fact: &Fact,
) {
    match fact {
        Fact::ExecutorDescribed(said) => {
            executors.described(header.executor, said);
            probes.executor_described()
        }
        Fact::ProcessGone { .. } if header.executor != 0 => {
            executors.process_gone(header.executor, header.pid)
        }
        Fact::PythonWorker(worker) => {
            if let Err(error) = executors.python_worker(probes, header.executor, worker) {
                tracing::debug!("a Python worker's task is not known: {error:#}");
            }
        }
        _ => {}
    }
}
