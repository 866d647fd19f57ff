//! Columns of the tables of a worker.

use crate::history::columns::{Kind, Table, column};

/// One row for each task attempt that has ended on a worker.
pub const TASKS: Table = Table {
    name: "worker_tasks",
    columns: &[
        column("stage_id", Kind::Int, true, "stage of the task"),
        column("stage_attempt", Kind::Int, true, "attempt of the stage"),
        column(
            "task_id",
            Kind::Long,
            false,
            "id of the task attempt, as in `tasks`",
        ),
        column("executor_id", Kind::Text, true, "executor that ran it"),
        column(
            "state",
            Kind::Text,
            false,
            "`succeeded`, `failed`, `killed` or `lost`",
        ),
        column(
            "duration_ns",
            Kind::Long,
            true,
            "time from start to end on the worker",
        ),
        column(
            "page_faults",
            Kind::Long,
            true,
            "page faults of the task's thread",
        ),
        column(
            "execution_memory_peak_bytes",
            Kind::Long,
            true,
            "peak of the execution memory that the task held",
        ),
        column(
            "cpu_ns",
            Kind::Long,
            true,
            "CPU time of the task's thread, as the kernel reports it",
        ),
        column(
            "allocated_bytes",
            Kind::Long,
            true,
            "bytes that the task allocated on the heap",
        ),
        column(
            "json",
            Kind::Text,
            false,
            "the whole row, as `smtt-ctl task ID --json` shows it, with the task's life in parts",
        ),
        column(
            "cpu_wait_ns",
            Kind::Long,
            true,
            "time in which the task's thread could run and had no CPU",
        ),
        column(
            "page_faults_major",
            Kind::Long,
            true,
            "page faults of the task's thread that needed a disk",
        ),
        column(
            "page_fault_time_ns",
            Kind::Long,
            true,
            "time of its page faults, from those that were measured; absent where fewer than 20 were",
        ),
        column(
            "page_fault_time_error_ns",
            Kind::Long,
            true,
            "half of the interval of that time: 1.96 standard errors, as if the measured faults were independent of each other ([design/faults.md](design/faults.md#time-of-page-faults))",
        ),
    ],
    order: &[0, 1, 2],
};

/// One row for each span of a task attempt that has ended: a function of Spark that took 1 ms or more.
pub const FUNCTIONS: Table = Table {
    name: "worker_functions",
    columns: &[
        column("stage_id", Kind::Int, true, "stage of the task"),
        column("stage_attempt", Kind::Int, true, "attempt of the stage"),
        column(
            "task_id",
            Kind::Long,
            false,
            "id of the task attempt, as in `tasks`",
        ),
        column("executor_id", Kind::Text, true, "executor that ran it"),
        column(
            "thread",
            Kind::Text,
            false,
            "`task` for the thread that runs the task, `helper` for another one, `python worker` for a process that served the task, `collections` for a pause of the executor's collector; empty where that is not known",
        ),
        column(
            "tid",
            Kind::Long,
            false,
            "the thread's id on the worker, in the initial pid namespace; of a Python worker its process id, of a pause 0",
        ),
        column(
            "activity",
            Kind::Text,
            false,
            "activity, as in ATTRIBUTION.md",
        ),
        column("function", Kind::Text, true, "function of Spark"),
        column(
            "begin_unix_us",
            Kind::Long,
            true,
            "begin by the worker's clock, in microseconds since 1970",
        ),
        column(
            "begin_ns",
            Kind::Long,
            false,
            "time from the task's begin on the worker to the span's begin",
        ),
        column("duration_ns", Kind::Long, false, "its duration"),
        column(
            "own_ns",
            Kind::Long,
            false,
            "its duration without the spans inside it",
        ),
        column("rdd_id", Kind::Long, true, "RDD that was current"),
    ],
    order: &[0, 1, 2, 9],
};

/// One row for each request of a task attempt that has ended for shuffle blocks of another executor.
pub const FETCHES: Table = Table {
    name: "worker_fetches",
    columns: &[
        column("stage_id", Kind::Int, true, "stage of the task"),
        column("stage_attempt", Kind::Int, true, "attempt of the stage"),
        column(
            "task_id",
            Kind::Long,
            false,
            "id of the task attempt, as in `tasks`",
        ),
        column("executor_id", Kind::Text, true, "executor that ran it"),
        column(
            "from_address",
            Kind::Text,
            true,
            "host and port of the destination",
        ),
        column(
            "from_executor_id",
            Kind::Text,
            true,
            "Spark's id of the executor or service at whose address the blocks were",
        ),
        column(
            "begin_unix_us",
            Kind::Long,
            true,
            "begin by the worker's clock, in microseconds since 1970",
        ),
        column(
            "begin_ns",
            Kind::Long,
            false,
            "time from the task's begin on the worker to the sending of the request",
        ),
        column(
            "duration_ns",
            Kind::Long,
            false,
            "time until its last block arrived or failed",
        ),
        column("blocks", Kind::Long, false, "requested blocks"),
        column(
            "bytes",
            Kind::Long,
            false,
            "bytes of the blocks that arrived",
        ),
        column(
            "outcome",
            Kind::Text,
            false,
            "`complete`, `failed` or `unfinished`",
        ),
    ],
    order: &[0, 1, 2, 7],
};

/// Everything else that a worker knows: a JSON document for each executor, stage, RDD and so on.
pub const REST: Table = Table {
    name: "worker",
    columns: &[
        column(
            "kind",
            Kind::Text,
            false,
            "`worker`, `executor`, `memory`, `stage`, `rdd`, `places`, `history`, `death` or `findings`",
        ),
        column("id", Kind::Text, false, "its id within the kind"),
        column("json", Kind::Text, false, "the document"),
    ],
    order: &[],
};
