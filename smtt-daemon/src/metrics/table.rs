//! Every metric as data: the exporter, docs/METRICS.md and the tests take names, labels and help from here.

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while its row lives.
    Counter,
    /// A value now.
    Gauge,
    /// Always 1; the labels are the information.
    Info,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Full name.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Labels in order.
    pub labels: &'static [&'static str],
    /// One sentence without a full stop.
    pub help: &'static str,
    /// When there is no series.
    pub absent: &'static str,
}

const RDD_LABELS: &[&str] = &["application_id", "application_name", "user", "rdd"];
const RDD_ACCESS_LABELS: &[&str] = &[
    "application_id",
    "application_name",
    "user",
    "rdd",
    "access",
];
const RDD_NODE_LABELS: &[&str] = &["application_id", "application_name", "user", "rdd", "node"];
/// Labels of a ratio: its access, and its denominator (`rdd`: the RDD's own cycles, `application`: all cycles of the
/// application's executors on this worker).
const RATIO_LABELS: &[&str] = &[
    "application_id",
    "application_name",
    "user",
    "rdd",
    "access",
    "cycles_of",
];
const EXECUTOR_LABELS: &[&str] = &["application_id", "user", "executor_id"];
const EVENT_LABELS: &[&str] = &["role", "event", "turn"];

macro_rules! metrics {
    ($($konst:ident $name:literal $kind:ident $labels:expr, $help:literal, $absent:literal;)+) => {
        $(#[doc = $help] pub const $konst: &Metric = &Metric { name: $name, kind: Kind::$kind, labels: $labels, help: $help, absent: $absent };)+
        /// Every metric, in the order in which they are written.
        pub const METRICS: &[&Metric] = &[$($konst),+];
    };
}

metrics! {
    BUILD_INFO "smtt_build_info" Info &["version", "kernel_side"],
        "Version of the daemon and how its kernel side was built", "";
    PROBE_UP "smtt_probe_up" Gauge &["probe"],
        "Whether a probe is attached by any of its hooks. An event of page walks that the machine offers and that counts nothing makes it 0", "the probe is not needed, is switched off, or is an additional one (page_walks, on_cpu, hotness, first_touch) that the machine does not support";
    PROBE_BROKEN "smtt_probe_broken_hooks" Gauge &["probe"],
        "Hooks of a probe that should work on this machine and do not, also where another hook of the probe is attached", "as smtt_probe_up";
    UNKNOWN_LIBRARIES "smtt_processes_with_unknown_library" Gauge &[],
        "Processes whose marker library has a digest that the daemon does not know, so that nothing of them is traced. Any local user can start one", "";
    EVENTS_ATTEMPTED "smtt_events_attempted_total" Counter &["hop"],
        "Records that reached a hop on their way from the executors to the state", "no slot file is open (hop marker)";
    EVENTS_LOST "smtt_events_lost_total" Counter &["hop", "cause"],
        "Records that a hop did not pass on, by cause", "nothing was lost for that cause";
    LEDGER_CONSISTENT "smtt_ledger_consistent" Gauge &["hop"],
        "Whether records attempted at a hop equal those delivered, lost and in flight", "no slot file is open (hop marker)";
    EXECUTOR_INFO "smtt_executor_info" Info &["application_id", "user", "application_name", "executor_id", "queue", "kubernetes_namespace", "kubernetes_pod", "container_id"],
        "An executor of this worker that the daemon knows. Queue (YARN), namespace and pod (Kubernetes) are what the executor claims, the container is in the name of its cgroup; each is empty where there is none. The queue is spark.yarn.queue: an application that does not set it has no queue here, and on YARN it runs in YARN's queue default", "";
    EXECUTOR_UP "smtt_executor_up" Gauge &["application_id", "user", "executor_id"],
        "Whether the executor's process lives", "the executor died longer ago than the retention";
    EXECUTOR_PAGE_FAULTS "smtt_executor_page_faults_total" Counter &["application_id", "user", "executor_id", "attribution"],
        "Page faults of an executor, attributed to a context of Spark, unattributed, or from before they were counted", "page faults are not counted on this machine";
    EXECUTOR_UNATTRIBUTED "smtt_executor_unattributed_page_faults_total" Counter &["application_id", "user", "executor_id", "thread_class"],
        "Page faults of an executor without a context, by class of the thread", "no fault of that class was counted";
    EXECUTOR_RESIDENT "smtt_executor_resident_bytes" Gauge &["application_id", "user", "executor_id"],
        "Resident memory of the executor's JVM", "the executor is dead, or its memory was not read yet";
    EXECUTOR_PEAK "smtt_executor_memory_peak_bytes" Gauge &["application_id", "user", "executor_id", "metric"],
        "Peak of a memory metric of the executor since its start, under the name of Spark's executor metric", "the peak is not known";
    EXECUTOR_SLOTS_REFUSED "smtt_executor_slots_refused_total" Counter &["application_id", "user", "executor_id"],
        "Threads of an executor that found no free slot, so that their events have no context", "the executor's slot file is not open";
    EXECUTOR_SAMPLES "smtt_executor_address_samples_total" Counter &["application_id", "user", "executor_id", "agreement"],
        "Sampled faults in known memory of an RDD, by whether the context named the same RDD", "no such fault was sampled";
    EXECUTOR_FACTS "smtt_executor_facts_total" Counter &["application_id", "user", "executor_id", "hop"],
        "Facts that the executor's marker has sent, by its own count, and facts that arrived at the daemon; the difference is in flight or lost", "the executor's slot file is not open";
    EXECUTOR_ROWS_REFUSED "smtt_executor_rows_refused_total" Counter &["application_id", "user", "executor_id", "table"],
        "Rows of an executor that share an overflow row or are missing because a table was full", "no row of that table was refused";
    EXECUTOR_SPILLS "smtt_executor_spills_total" Counter EXECUTOR_LABELS,
        "Spills of 1 ms or more", "there was none";
    EXECUTOR_SPILL_SECONDS "smtt_executor_spill_seconds_total" Counter EXECUTOR_LABELS,
        "Time in spills of 1 ms or more in seconds, added up over tasks", "there was none";
    EXECUTOR_LIMIT "smtt_executor_memory_limit_bytes" Gauge &["application_id", "user", "executor_id", "limit"],
        "Limits of an executor's memory under the names of their settings. memory.max may be that of a control group above the executor's", "the limit is not set or not known";
    EXECUTOR_CGROUP "smtt_executor_cgroup_bytes" Gauge EXECUTOR_LABELS,
        "Memory of the executor's control group with everything in it: the JVM, its Python workers, other processes of the group, page cache, and the kernel's own for them (memory.current)", "the executor is dead, its memory was not read yet, it is in the root group, or its group cannot be named (a daemon in a pod with cgroup v2, without the node's /sys/fs/cgroup)";
    EXECUTOR_CGROUP_CACHE "smtt_executor_cgroup_page_cache_bytes" Gauge EXECUTOR_LABELS,
        "Page cache of that group without shared memory (a part of smtt_executor_cgroup_bytes). The kernel drops it before it kills a process", "as smtt_executor_cgroup_bytes";
    EXECUTOR_CGROUP_PEAK "smtt_executor_cgroup_peak_bytes" Gauge EXECUTOR_LABELS,
        "The most memory that the group of smtt_executor_cgroup_bytes has had, page cache included, since it was made (memory.peak)", "as smtt_executor_cgroup_bytes, or the kernel does not keep it (cgroup v2 before Linux 5.19)";
    FINDING "smtt_finding" Gauge &["rule", "severity", "application_id", "application_name", "user", "rdd"],
        "Findings of smtt-ctl advise with these labels (docs/ADVICE.md) that can still be acted on; rdd is empty where the finding is about no single RDD", "nothing was found, no executor of the application lives on this worker any more, or the unread blocks (never_read) are gone";
    FINDING_SAVING "smtt_finding_saving_seconds" Gauge &["rule", "severity", "application_id", "application_name", "user", "rdd", "end"],
        "Seconds of the executors' threads on this worker that the remedies of these findings would save (skew: by which the tasks of the stages end earlier): expected, and the low and high end of their interval", "as smtt_finding, or the findings have no seconds";
    RDD_FAULTS "smtt_rdd_page_faults_total" Counter RDD_ACCESS_LABELS,
        "Page faults in contexts that name the RDD: of loads (read), of stores (write), or from a hook that cannot distinguish them (unknown)", "no fault of that access was counted";
    RDD_MAJOR "smtt_rdd_major_page_faults_total" Counter RDD_LABELS,
        "Page faults that needed I/O in contexts that name the RDD (a part of smtt_rdd_page_faults_total)", "none was counted";
    RDD_TIMED "smtt_rdd_page_faults_timed_total" Counter RDD_LABELS,
        "Page faults in contexts that name the RDD whose time was measured: those of random windows ([probe.fault] timed_share)", "none was measured";
    RDD_TIMED_SECONDS "smtt_rdd_page_faults_timed_seconds_total" Counter RDD_LABELS,
        "Time of the measured page faults in seconds; divided by their number and times smtt_rdd_page_faults_total it is the time that page faults of the RDD take", "none was measured";
    RDD_STORED "smtt_rdd_blocks_stored_total" Counter RDD_LABELS,
        "Blocks of the RDD that were stored in memory", "none was stored";
    RDD_STORED_AGAIN "smtt_rdd_blocks_stored_again_total" Counter RDD_LABELS,
        "Blocks of the RDD whose partition had been in memory before and had left it (a part of smtt_rdd_blocks_stored_total)", "none was stored again";
    RDD_EVICTED "smtt_rdd_blocks_evicted_total" Counter RDD_LABELS,
        "Blocks of the RDD that were evicted from memory to make room for others", "none was evicted";
    RDD_BLOCK_READS "smtt_rdd_block_reads_total" Counter RDD_LABELS,
        "Reads of the RDD's blocks that were in memory already: one per task and block", "none was read";
    RDD_STORAGE "smtt_rdd_storage_memory_bytes" Gauge RDD_LABELS,
        "Bytes of the RDD's blocks in memory, as Spark accounts for them", "there are none";
    RDD_EXECUTION "smtt_rdd_execution_memory_bytes" Gauge RDD_LABELS,
        "Bytes of live execution memory that was allocated while the RDD was current", "there is none now, and there was none in the time of the peak";
    RDD_EXECUTION_PEAK "smtt_rdd_execution_memory_peak_bytes" Gauge RDD_LABELS,
        "Peak of the RDD's execution memory in the last one to two [web] scrape_interval; peaks of executors and of RDDs of the same key within five seconds are added up", "there was none in that time";
    RDD_CACHED "smtt_rdd_partitions_cached" Gauge RDD_LABELS,
        "Partitions of the RDD in memory", "there are none";
    RDD_NODE "smtt_rdd_memory_node_bytes" Gauge RDD_NODE_LABELS,
        "Bytes of the RDD's blocks and execution memory that are in memory, by NUMA node, at the last inspection", "no address of the RDD is known, or its memory was not inspected yet";
    RDD_HUGE "smtt_rdd_memory_huge_page_bytes" Gauge RDD_LABELS,
        "Bytes of the RDD's blocks and execution memory that are on pages larger than the machine's base page size, at the last inspection", "no address of the RDD is known, its memory was not inspected yet, or page sizes are unavailable on this machine";
    RDD_SWAPPED "smtt_rdd_memory_swapped_bytes" Gauge RDD_LABELS,
        "Bytes of the RDD's blocks and execution memory that are swapped out, at the last inspection", "no address of the RDD is known, or its memory was not inspected yet";
    RDD_SAMPLED "smtt_rdd_sampled_objects" Gauge RDD_LABELS,
        "Sampled objects of the RDD's blocks. Blocks stored as objects have no contiguous bytes, so the smtt_rdd_sampled ratios are estimated from these objects; the metrics in bytes do not include them", "the RDD has no blocks of objects, no sampled object has an address, or none was inspected yet";
    RDD_SAMPLED_NODE "smtt_rdd_sampled_node_ratio" Gauge RDD_NODE_LABELS,
        "Of the RDD's blocks of objects that are in memory, the share by NUMA node, estimated from sampled objects, 0 to 1", "the RDD has no sampled objects, or their nodes are unavailable";
    RDD_SAMPLED_HUGE "smtt_rdd_sampled_huge_page_ratio" Gauge RDD_LABELS,
        "Of the RDD's blocks of objects that are in memory, the share on pages larger than the machine's base page size, estimated from sampled objects, 0 to 1", "the RDD has no sampled objects, or page sizes are unavailable on this machine";
    RDD_SAMPLED_SWAPPED "smtt_rdd_sampled_swapped_ratio" Gauge RDD_LABELS,
        "Of the RDD's blocks of objects, the share that is swapped out, estimated from sampled objects, 0 to 1", "the RDD has no sampled objects";
    RDD_HOT "smtt_rdd_memory_hot_bytes" Gauge RDD_LABELS,
        "Bytes of the RDD's blocks in regions where the last window of DAMON found an access", "[hotness] method is not \"damon\", DAMON is unavailable or in use, or no address of the RDD is known";
    RDD_ACCESSED_RATIO "smtt_rdd_memory_accessed_ratio" Gauge RDD_LABELS,
        "Share of DAMON's checks of the RDD's blocks that found an access, in the last window", "[hotness] method is not \"damon\", DAMON is unavailable or in use, or no address of the RDD is known";
    RDD_READ_BYTES "smtt_rdd_read_bytes_total" Counter RDD_NODE_LABELS,
        "Bytes of the RDD's blocks that were read, by whether they were on the NUMA node of the CPU that read them (local) or on another (remote)", "the node of the CPU or of the bytes is unknown for every read";
    RESOLVER_PAGES "smtt_resolver_pages_total" Counter &[],
        "Pages that were inspected for their placement", "[placement] pages_per_second is 0";
    RESOLVER_CPU "smtt_resolver_cpu_seconds_total" Counter &[],
        "CPU time of the inspection of pages in seconds", "[placement] pages_per_second is 0";
    RESOLVER_UNMAPPED "smtt_resolver_unmapped_bytes_total" Counter &[],
        "Bytes whose reported addresses were in no mapping, summed over inspections", "[placement] pages_per_second is 0";
    RESOLVER_DISCARDED "smtt_resolver_discarded_slices_total" Counter &[],
        "Slices of inspections (at most 256 pages each) whose results on the Java heap were discarded because a collection began", "[placement] pages_per_second is 0";
    EXECUTOR_CYCLES "smtt_executor_cycles_total" Counter &["application_id", "user", "executor_id", "attribution"],
        "Cycles of an executor, sampled, attributed to a context of Spark or unattributed", "cycles cannot be sampled on this machine";
    RDD_WALK "smtt_rdd_page_walk_cycles_total" Counter RDD_ACCESS_LABELS,
        "Cycles with a page walk under way in contexts that name the RDD, sampled: for reads, for writes, or for data where the processor does not distinguish them (any)", "the processor counts no walk cycles, or none were sampled";
    RDD_OCCUPANCY "smtt_rdd_page_walk_occupancy_total" Counter RDD_ACCESS_LABELS,
        "Page walks in flight in contexts that name the RDD, added up over cycles, sampled", "the processor counts walk cycles, or counts no walks in flight, or none were sampled";
    RDD_MISSES "smtt_rdd_dtlb_misses_total" Counter RDD_ACCESS_LABELS,
        "Accesses to data that needed a page walk in contexts that name the RDD, sampled", "page walks are not counted on this machine, or none were sampled";
    RDD_WALK_SAMPLES "smtt_rdd_page_walk_samples_total" Counter RDD_LABELS,
        "Samples of page walks in contexts that name the RDD", "there were none";
    RDD_WALK_RATIO "smtt_rdd_page_walk_ratio" Gauge RATIO_LABELS,
        "Share of the last minute's cycles with a page walk of the RDD under way, in the RDD's own cycles or in all cycles of the application's executors", "the processor counts no walk cycles, or the RDD had no cycles in that minute";
    RDD_WALK_ESTIMATED "smtt_rdd_page_walk_estimated_ratio" Gauge RATIO_LABELS,
        "Estimate of that share: misses times the calibrated cost of a walk", "walk cycles are counted, the cost of a walk is unknown, or the RDD had no cycles in that minute";
    RDD_OCCUPANCY_RATIO "smtt_rdd_page_walk_occupancy_per_cycle" Gauge RATIO_LABELS,
        "Page walks of the RDD in flight per cycle in the last minute: can exceed 1, so it is not a share", "the processor counts walk cycles, counts no walks in flight, or the RDD had no cycles in that minute";
    WALK_COUNTED "smtt_page_walk_event_counted_total" Counter EVENT_LABELS,
        "Count of a sampled event on the whole machine, by its counters", "page walks are not measured on this machine";
    WALK_SAMPLED "smtt_page_walk_event_sampled_total" Counter EVENT_LABELS,
        "Count of a sampled event on the whole machine, by its samples", "page walks are not measured on this machine";
    WALK_ENABLED "smtt_page_walk_event_enabled_seconds_total" Counter EVENT_LABELS,
        "Seconds for which a sampled event was enabled, added up over CPUs", "page walks are not measured on this machine";
    WALK_RUNNING "smtt_page_walk_event_running_seconds_total" Counter EVENT_LABELS,
        "Seconds for which a sampled event had a counter, added up over CPUs; less than enabled where other users share the counters. Counts are not scaled up for the difference", "page walks are not measured on this machine";
    WALK_COST "smtt_page_walk_calibrated_cycles" Gauge &["access"],
        "Calibrated cycles per page walk on this machine, for estimates", "walk cycles are counted, or the cost of a walk is unknown";
    KEYS_REFUSED "smtt_rdd_keys_refused_total" Counter &[],
        "Keys of RDDs that have shared rdd=\"other\" because of the limit of keys", "";
    TRACE_UP "smtt_trace_up" Gauge &[],
        "Whether trace records can be written to their folder", "no trace records are written";
    TRACE_BYTES "smtt_trace_disk_bytes" Gauge &[],
        "Bytes of the finished trace segments in the folder", "no trace records are written";
    TRACE_SEGMENTS "smtt_trace_segments_total" Counter &[],
        "Trace segments that were finished", "no trace records are written";
    TRACE_SEGMENTS_REMOVED "smtt_trace_segments_removed_total" Counter &[],
        "Finished trace segments that were removed to keep within the bound of the disk", "no trace records are written";
    HISTORY_UP "smtt_history_up" Gauge &[],
        "Whether files of the history can be written to [history] store", "[history] is switched off";
    HISTORY_LOST "smtt_history_tasks_lost_total" Counter &[],
        "Tasks that the history does not have, because they could not be written in time. Those of applications that can have no history are in smtt_history_tasks_refused_total", "[history] is switched off";
    HISTORY_REFUSED "smtt_history_tasks_refused_total" Counter &[],
        "Tasks of applications whose id, as their executors claim it, can be no folder: nothing is written about them, and they are not lost", "[history] is switched off";
    HISTORY_EXECUTORS_LOST "smtt_history_executors_lost_total" Counter &[],
        "Executors that went before the history had their last documents: it could not be written in time, or [retention] executors is too short", "[history] is switched off";
    POSTMORTEM_UP "smtt_postmortem_up" Gauge &[],
        "Whether reports about dead executors can be written to their folder", "no reports are written";
    REPORTS_LOST "smtt_postmortem_reports_lost_total" Counter &[],
        "Reports about dead executors that were given up: they could not be written, or the daemon's table of executors was full", "no reports are written";
    EXECUTORS_OVER_CAP "smtt_executors_over_cap_total" Counter &[],
        "Executors that were refused because the daemon's table was full", "";
    EXECUTORS_EVICTED "smtt_executors_evicted_total" Counter &[],
        "Living executors that lost their rows, because the daemon needed the room for those of others. Each is found again after 10 seconds, later after up to 10 minutes, and its counts begin anew", "";
    STATE_BYTES "smtt_state_bytes" Gauge &[],
        "Bytes of the daemon's tables of all executors, as counted against `[limits] state`", "";
    STRINGS_CUT "smtt_fact_strings_cut_total" Counter &[],
        "Strings of facts that were longer than a marker sends, and were cut", "";
    EXECUTOR_DEATHS "smtt_executor_deaths_total" Counter &["verdict"],
        "Deaths of executors and of their Python workers since the daemon started, by verdict (docs/POSTMORTEM.md)", "";
    PROCESS_CPU "process_cpu_seconds_total" Counter &[],
        "User and system CPU time of the daemon in seconds", "the value could not be read";
    PROCESS_RSS "process_resident_memory_bytes" Gauge &[],
        "Resident memory of the daemon in bytes", "the value could not be read";
    BPF_MEMORY "smtt_bpf_memory_bytes" Gauge &[],
        "Memory of the daemon's eBPF programs and maps in bytes", "the value could not be read";
    SERIES_LEFT_OUT "smtt_scrape_series_left_out" Gauge &[],
        "Series of RDDs that this answer leaves out because it would be too large", "";
    SCRAPE_DURATION "smtt_scrape_duration_seconds" Gauge &[],
        "Time to make this answer in seconds", "";
}

/// The document that describes the metrics.
#[must_use]
pub fn document(metrics: &[&Metric]) -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         <!-- Generated from smtt-daemon/src/metrics/table.rs; a test compares. Regenerate: SMTT_BLESS=1 cargo test -p smtt-daemon -->\n\n\
         Served at `/metrics` of the metrics port and of the control socket, as OpenMetrics where the scraper accepts it, else as text 0.0.4.\n\n\
         * **What was not measured has no series**; a zero is a measured zero. The column \"no series when\" gives the condition.\n\
         * `application_id` and `executor_id` are Spark's, as in Spark's own metrics. They are claims of the executor. `user` is the number of the process's user, as the kernel reports it: the same application id of two users is two applications. Attempts of an application share its keys of RDDs: their counts add up. When a second process of one user claims the ids of an executor whose figures are still kept, as an executor of a second attempt may, its process id is added to its `executor_id` (`1 (pid N)`), and `smtt-ctl executors --json` marks it (`claimed_twice`). An executor that has not described itself is `pid N` of an empty application.\n\
         * Series of RDDs belong to a key, `rdd`, that lives as long as the application: the RDD's name, or its call site where it has no name of its own, summed over RDDs and over the executors of this worker. Spark names a cached DataFrame by its plan: as a key it has no ids of columns and of compiled stages, and `?` in place of each number, so that the same lines have one key however often they cache it. With `[metrics] rdds_by` it is another text, and the name only where the RDD has none: `\"query\"`, the description of the SQL execution that the RDD worked for first (of SQL with `?` in place of each string and number, so that the RDDs of all runs of a query are one key), `\"node\"`, the plan node or operation that made it, or `\"callsite\"`. A query is known when the driver's plugin has described a stage; what was counted within ten seconds before that belongs to it, too. Ids of RDDs and of SQL executions are in no label. `rdd=\"none\"` is work and memory of no RDD, `rdd=\"other\"` everything of RDDs without a key of their own, so that the keys of an application always add up to what its executors have. An application has at most `[limits] series_per_application` keys, all together `[limits] series`, shared evenly among users, then among the applications of a user; what one does not need is left to the others. A key is replaced where another needs its place and it has counted nothing for ten minutes and holds no memory, or has never counted a page fault.\n\
         * **A new counter is 0 first**: it shows 0 from its first count on for `[web] scrape_interval`, then its value. So each scraper sees the 0, and `rate()` and `increase()` see all of its counts. A counter of an RDD without a count has no series, and a size of 0 neither. The control socket shows current values at once. What was sent by markers and not seen (`smtt_events_lost_total` of the hop `marker`) counts when it has been missing for a minute: until then it may be on its way.\n\
         * The metrics port answers any local user, so it shows no names by default (`[web] names = \"hidden\"`): `application_id` is an opaque id (`hidden-...`), `application_name`, `queue`, `kubernetes_namespace`, `kubernetes_pod` and `container_id` are empty, `rdd` and an `executor_id` that is no number are opaque too. An opaque id is the same while the daemon runs. Each daemon makes its own, so series of one application on several workers have different ids and cannot be added up by application, and the option `--app` of `smtt-ctl` does not know them. With `names = \"shown\"`, and always on the control socket, they are as the executors report them.\n\
         * A label value has at most 128 bytes; a longer one ends in `…`. An answer is shared by all scrapers for a second. Where a scraper prefers gzip (`Accept-Encoding`, as Prometheus sends it), the answer is compressed, once for all of them.\n\
         * Counters of an executor end when it has been dead for `[retention] executors`, those of an application with its last executor on this worker.\n\
         * Values of labels: `attribution` is `attributed` or `unattributed`, of page faults also `before_tracing`. `access` is `read` or `write`, of page faults also `unknown`, of page walks also `any`. `cycles_of` is `rdd` or `application`. `node` is `local` or `remote` where bytes are read, else the node's number. `agreement` is `same_rdd` or `other_rdd`. `thread_class` is `gc_thread`, `jit_thread`, `vm_thread`, `other_thread`, `idle`, `child_process`, `slot_unreadable` or `context_table_full`. `hop` of facts is `sent` or `arrived`, else a hop of the ledger (`smtt-ctl status`). `limit` has the names of [MEMORY.md](MEMORY.md#limits), `verdict` those of [POSTMORTEM.md](POSTMORTEM.md#verdicts), or `unknown` where no rule applies, `rule` those of [ADVICE.md](ADVICE.md#findings). `end` of a saving is `low`, `expected` or `high`.\n\
         * Reads and writes are the hardware's: a task that reads an RDD can cause write faults, because the objects that it makes are new memory.\n\n\
         | metric | kind | labels | what it is | no series when |\n|---|---|---|---|---|\n",
    );
    for metric in metrics {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        };
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        text.push_str(&format!(
            "| `{}` | {kind} | {} | {} | {} |\n",
            metric.name,
            labels.join(", "),
            metric.help.replace('|', "\\|"),
            metric.absent
        ));
    }
    text
}
