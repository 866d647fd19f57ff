//! Owner of everything in the kernel: programs, maps, links. Only this module and [`crate::ring`] name aya types.

mod attach;
mod before_tracing;
mod cpus;
mod fault_time;
mod health;
mod kernel_fields;
mod kernel_function;
mod kernel_log;
pub mod library;
mod memory;
mod owner;
pub mod page_walks;
mod perf_link;
mod reading;
mod retries;
mod rows;
mod running;
mod sweep;
mod table;
mod tables;
mod wire;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use aya::maps::{HashMap, Map, MapData, PerCpuHashMap, RingBuf};
use aya::{Ebpf, EbpfLoader};
use smtt_common::counter::ExecutorCounters;
use smtt_common::event::used::{TaskBegin, WorkerBegin};
use smtt_common::settings::{Budget, Process, ROLE_EXECUTOR, TableOperation, Thread, User};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_machine::page_walks::{NotMeasured, Wanted};
use smtt_machine::proc;
use smtt_model::readings::{PageWalkReadings, Readings};
use smtt_model::sort::small::Gather as _;
use smtt_model::subordinate::SubordinateIds;
use smtt_model::verdict::{Verdict, VerdictState};

use self::attach::FaultHooks;
use self::before_tracing::Before;
use self::cpus::Cpus;
use self::fault_time::FaultTimer;
pub use self::kernel_log::KernelLog;
use self::library::{FilePlaces, Libraries};
use self::owner::{SharesOfOwners, executor_rows};
use self::page_walks::{Clock, Sampler};
use self::reading::Reader;
use self::sweep::Sweep;
use self::wire::Wire;

/// Rows of one executor in the kernel side's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Processes of the executor, including its JVM.
    pub processes: usize,
    /// Threads of the executor that have a slot.
    pub threads: usize,
    /// Contexts of the executor.
    pub contexts: usize,
}

/// The kernel side, loaded and attached. Dropping it leaves nothing behind in the kernel.
pub struct Probes {
    ebpf: Ebpf,
    verdicts: Vec<Verdict>,
    libraries: Arc<Libraries>,
    reader: Reader,
    access_known: bool,
    major_known: bool,
    /// The sampled page-walk events, or why there are none.
    walks: Result<Sampler, NotMeasured>,
    /// The kernel's clock, where cycles are not sampled.
    clock: Clock,
    cpus: Cpus,
    /// Hooks of page faults that are attached only while an executor lives.
    fault_hooks: FaultHooks,
    /// Measures how long page faults take, or the verdict why it does not.
    fault_timer: Result<FaultTimer, (VerdictState, String)>,
    before: Before,
    shares: SharesOfOwners,
    sweep: Sweep,
    /// Executors whose totals the next reading removes.
    leaving: Vec<u64>,
    /// Last totals of executors whose rows were removed since the last reading.
    forgotten: Vec<(u64, ExecutorCounters)>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.libraries.detach_all();
    }
}

/// One executor, or one user, may fill this part of a busy ring at once.
const BURST_SHARE: u32 = 8;

/// The object that `build.rs` made, compressed; empty where there was no compiler.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/smtt.bpf.o.zst"));
/// Bytes of the object at most, far above what it has.
const OBJECT_BYTES: usize = 16 << 20;

/// Toolchain that the kernel side was compiled with; empty where it was built without one.
pub const TOOLCHAIN: &str = env!("SMTT_EBPF_TOOLCHAIN");

/// The timer of page faults, where it is wanted.
fn fault_timer(
    ebpf: &mut Ebpf,
    wanted: &ProbeSettings,
) -> Result<FaultTimer, (VerdictState, String)> {
    let off = |setting: &str| {
        (
            VerdictState::NotApplicable,
            format!("switched off by {setting}"),
        )
    };
    if wanted.fault_hook == FaultHook::Off {
        return Err(off("[probe.fault] hook"));
    }
    let every = wanted.fault_windows;
    let every = every.ok_or_else(|| off("[probe.fault] timed_share"))?;
    FaultTimer::start(ebpf, every).map_err(|error| {
        let reason = format!("{error:#}; without it the time of page faults is unknown");
        (VerdictState::Broken, reason)
    })
}

impl Probes {
    /// Loads the kernel side and attaches every row of the table but the marker's, whose library comes later.
    ///
    /// # Errors
    /// When nothing can work: no permission to load programs, or a required table that cannot be created. A probe that
    /// cannot be attached is a verdict, not an error.
    pub fn load(wanted: &ProbeSettings) -> anyhow::Result<Self> {
        ensure!(
            !OBJECT.is_empty(),
            "this smtt-daemon was built without its kernel side, which needs an eBPF compiler: run `cargo xtask setup` and build it again"
        );
        let object = zstd::bulk::decompress(OBJECT, OBJECT_BYTES).context("the kernel side")?;
        memory::lift_limits();
        let mut settings = wanted.settings;
        let no_ids = kernel_fields::set(&mut settings);
        let executors = executor_rows(wanted);
        settings.executor_rows = executors;
        settings.process_rows = wanted.processes;
        settings.thread_rows = wanted.threads;
        settings.context_rows = wanted.contexts;
        settings.burst_bytes = wanted.ring_bytes / BURST_SHARE;
        let settings = Wire(settings);
        let walks = Wanted::here(&wanted.page_walks, Path::new("/"));
        let clock = Clock::new(wanted.clock_samples_per_second);
        let walk_rows = match walks.is_ok() || clock.is_wanted() {
            true => wanted.contexts,
            false => 1,
        };
        let mut ebpf = EbpfLoader::new()
            .override_global("SETTINGS", &settings, true)
            .map_max_entries("RING", wanted.ring_bytes)
            .map_max_entries("CONTEXTS", wanted.contexts)
            .map_max_entries("WALKS", walk_rows)
            .map_max_entries("EXECUTORS", executors)
            .map_max_entries("BUDGETS", executors)
            .map_max_entries("USERS", executors)
            .map_max_entries("GROUPS", executors)
            .map_max_entries("PROCESSES", wanted.processes)
            .map_max_entries("THREADS", wanted.threads)
            .map_max_entries("TASKS", wanted.threads)
            .map_max_entries("WORKERS", wanted.processes)
            .map_max_entries("INNER_IDS", wanted.processes)
            .load(&object)
            .context("the kernel refuses the tracer's tables: run as root, or with CAP_BPF and CAP_PERFMON (`smtt-ctl doctor` shows which is missing)")?;
        tables::load(&mut ebpf)?;
        let shares = SharesOfOwners::default();
        let places = FilePlaces {
            all: wanted.library_files,
            user_share_permille: wanted.settings.user_share_permille,
        };
        let libraries = Libraries::load(&mut ebpf, &object, places, Arc::clone(&shares.owners))?;
        let mut probes = Self {
            verdicts: Vec::new(),
            libraries: Arc::new(libraries),
            reader: Reader::default(),
            access_known: false,
            major_known: false,
            walks: walks.and_then(|walks| Sampler::start(&mut ebpf, walks, wanted.page_walks.turn)),
            clock,
            cpus: Cpus::new()?,
            fault_hooks: FaultHooks::new(wanted.fault_idle),
            fault_timer: fault_timer(&mut ebpf, wanted),
            before: Before::default(),
            shares,
            sweep: Sweep::default(),
            leaving: Vec::new(),
            forgotten: Vec::new(),
            ebpf,
        };
        probes.attach_table(wanted.fault_hook, no_ids);
        probes.follow_clock(false);
        Ok(probes)
    }

    /// The verdict of every probe, in the order of the table.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let mut all = self.libraries.verdicts();
        all.extend(self.verdicts.iter().cloned());
        all.push(fault_time::verdict(&self.fault_timer));
        all.push(match &self.walks {
            Ok(sampler) => sampler.verdict(),
            Err(why) => page_walks::not_measured(why),
        });
        all.push(self.clock.verdict());
        all
    }

    /// Number of processes whose marker library is not known.
    #[must_use]
    pub fn unknown_libraries(&self) -> usize {
        self.libraries.unknown()
    }

    /// Attaches probes to the entry points of a trusted marker library, and makes its bytes known.
    ///
    /// # Errors
    /// A sentence that states why this file has no probes: it is unreadable, an entry point or its pad is missing, or
    /// the kernel refuses.
    pub fn attach_library(&mut self, path: &Path) -> anyhow::Result<()> {
        self.libraries.configure(path)
    }

    /// The files that are probed, for [`crate::discover`].
    #[must_use]
    pub fn libraries(&self) -> Arc<Libraries> {
        Arc::clone(&self.libraries)
    }

    /// Sets the ranges of subordinate ids: their ids use the share of the user to whom a range belongs.
    ///
    /// # Errors
    /// When the kernel side's table cannot be changed.
    pub fn set_subordinate_ids(&mut self, ids: &Arc<SubordinateIds>) -> anyhow::Result<()> {
        self.shares.set(&mut self.ebpf, ids)
    }

    /// Takes the ring out, for [`crate::ring`]. It can be taken once.
    ///
    /// # Errors
    /// When it was taken before.
    pub fn take_ring(&mut self) -> anyhow::Result<RingBuf<MapData>> {
        Ok(RingBuf::try_from(
            self.ebpf
                .take_map("RING")
                .context("the ring was taken before")?,
        )?)
    }

    /// Takes the kernel side's own log out, or `None` where it has none.
    pub fn take_log(&mut self) -> Option<KernelLog> {
        aya_log::EbpfLogger::init(&mut self.ebpf)
            .ok()
            .map(KernelLog)
    }

    /// Reads the growth of all counters since the last reading.
    ///
    /// # Errors
    /// When a table cannot be read, which happens only when the kernel is out of memory.
    pub fn readings(&mut self) -> anyhow::Result<Readings> {
        self.follow_cpus();
        self.remove_leaving()?;
        let mut living = self.living()?;
        // A row that was made while its process ended is no proof of life.
        living.retain(|(pid, _)| proc::exists(*pid));
        self.follow_executors(!living.is_empty());
        // Before the counters, so that it is never more than what they have and what was there before.
        let kernel = self.before.kernel_counts(&living);
        let mut readings = self.reader.read(&mut self.ebpf)?;
        for (executor, kernel) in kernel {
            if let Some((_, totals)) = readings.executors.iter().find(|(key, _)| *key == executor) {
                let counted = self.reader.own_faults(executor, totals);
                self.before.compare(executor, kernel, counted);
            }
        }
        if self.faults_counted() {
            readings.before = self.before.faults();
        }
        let keys: BTreeSet<u64> = living.iter().map(|(_, key)| *key).gather();
        readings.gone = self.sweep.executors(&keys, &mut readings.executors);
        for (tid, executor) in self.sweep.threads(&keys, self.reader.threads()) {
            self.change(TableOperation::FORGET_THREAD, &[u64::from(tid), executor])?;
        }
        readings.access_known = self.access_known;
        readings.major_known = self.major_known;
        let mut contexts = self.reader.read_walks(&mut self.ebpf)?;
        readings.clock = self.clock.take(&mut contexts);
        contexts.retain(|(_, growth)| !growth.is_empty());
        if let Ok(sampler) = &mut self.walks {
            readings.page_walks = Some(PageWalkReadings {
                contexts,
                ..sampler.read(&self.ebpf)?
            });
        }
        // Last, so that an error above loses none.
        readings.forgotten = std::mem::take(&mut self.forgotten);
        Ok(readings)
    }

    /// Keys of the rows of a hash table that match. Read in batches: a walk from key to key begins anew when its key is
    /// removed, which executors can cause at any time.
    fn rows_of<V: wire::Plain + Default>(
        &self,
        table: &str,
        matches: impl Fn(&V) -> bool,
    ) -> anyhow::Result<Vec<u32>> {
        let map = self.ebpf.map(table);
        let map = map.with_context(|| format!("no table {table}"))?;
        let map = memory::map_fd(map).with_context(|| format!("{table} is no hash table"))?;
        let rows = tables::rows::<u32, V>(map);
        let rows = rows.with_context(|| format!("the table {table} cannot be read"))?;
        let own = rows.into_iter().filter(|(_, row)| matches(row));
        Ok(own.map(|(id, _)| id).collect())
    }

    /// Threads that had a row at the last reading, by thread id and executor key.
    #[must_use]
    pub fn thread_rows(&self) -> &[(u32, u64)] {
        self.reader.threads()
    }

    /// Rows of the table of running tasks.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn task_rows(&self) -> anyhow::Result<usize> {
        Ok(self.rows_of::<TaskBegin>("TASKS", |_| true)?.len())
    }

    /// Rows in the table of Python workers.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn worker_rows(&self) -> anyhow::Result<usize> {
        Ok(self.rows_of::<WorkerBegin>("WORKERS", |_| true)?.len())
    }

    /// Process ids and keys of the living executors.
    fn living(&self) -> anyhow::Result<Vec<(u32, u64)>> {
        let map = memory::map_fd(self.ebpf.map("PROCESSES").context("no table PROCESSES")?)
            .context("PROCESSES is no hash table")?;
        let rows =
            tables::rows::<u32, Process>(map).context("the table PROCESSES cannot be read")?;
        Ok(rows
            .into_iter()
            .filter(|(_, process)| process.role == ROLE_EXECUTOR)
            .map(|(pid, process)| (pid, process.executor))
            .collect())
    }

    /// Facts of a process that the kernel side has seen so far.
    #[must_use]
    pub fn facts_seen(&self, pid: u32) -> u64 {
        let seen = || -> anyhow::Result<u64> {
            let Wire(process) = self.map::<u32, Process>("PROCESSES")?.get(&pid, 0)?;
            let executors = PerCpuHashMap::<_, u64, Wire<ExecutorCounters>>::try_from(
                self.ebpf.map("EXECUTORS").context("no table EXECUTORS")?,
            )?;
            Ok(executors
                .get(&process.executor, 0)?
                .iter()
                .map(|Wire(counters)| counters.facts_seen)
                .sum())
        };
        seen().unwrap_or(0)
    }

    /// Reads the number of an executor's facts that the kernel side has seen, on any thread and without the probes.
    ///
    /// # Errors
    /// When the table cannot be used.
    pub fn facts_seen_reader(
        &self,
        executor: u64,
    ) -> anyhow::Result<impl Fn() -> u64 + Send + 'static> {
        let map = self.ebpf.map("EXECUTORS").context("no table EXECUTORS")?;
        let map = memory::map_fd(map).context("EXECUTORS is no hash table")?;
        let map = MapData::from_fd(map.try_clone_to_owned()?)?;
        let executors =
            PerCpuHashMap::<_, u64, Wire<ExecutorCounters>>::try_from(Map::PerCpuHashMap(map))?;
        Ok(move || {
            let counters = executors.get(&executor, 0);
            counters.map_or(0, |counters| {
                counters
                    .iter()
                    .map(|Wire(counters)| counters.facts_seen)
                    .sum()
            })
        })
    }

    /// An executor's use of the shared tables, or `None` when it has no row.
    ///
    /// # Errors
    /// When the table is missing from the object.
    pub fn budget(&self, executor: u64) -> anyhow::Result<Option<Budget>> {
        Ok(self
            .map::<u64, Budget>("BUDGETS")?
            .get(&executor, 0)
            .ok()
            .map(|Wire(budget)| budget))
    }

    /// The use of the shared tables by all executors of a share, which is a user's, or `None` when it has none.
    ///
    /// # Errors
    /// When the table is missing from the object.
    pub fn user(&self, uid: u32) -> anyhow::Result<Option<User>> {
        Ok(self
            .map::<u32, User>("USERS")?
            .get(&uid, 0)
            .ok()
            .map(|Wire(user)| user))
    }

    /// Current rows of an executor in the tables.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub fn rows(&self, executor: u64) -> anyhow::Result<Rows> {
        let processes = self
            .map::<u32, Process>("PROCESSES")?
            .iter()
            .flatten()
            .filter(|(_, Wire(process))| process.executor == executor)
            .count();
        let threads = self
            .map::<u32, Thread>("THREADS")?
            .iter()
            .flatten()
            .filter(|(_, Wire(thread))| thread.executor == executor)
            .count();
        Ok(Rows {
            processes,
            threads,
            contexts: self.reader.rows(&self.ebpf, executor)?,
        })
    }

    /// Kernel memory of the tables and programs, in bytes, as the kernel accounts it.
    #[must_use]
    pub fn bpf_memory_bytes(&self) -> u64 {
        memory::locked_bytes()
    }

    fn map<K: aya::Pod, V>(&self, name: &str) -> anyhow::Result<HashMap<&MapData, K, Wire<V>>>
    where
        Wire<V>: aya::Pod,
    {
        Ok(HashMap::try_from(
            self.ebpf
                .map(name)
                .with_context(|| format!("no table {name}"))?,
        )?)
    }
}
