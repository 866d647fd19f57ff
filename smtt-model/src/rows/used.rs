//! What tasks and stages used, as columns of their rows.

use serde::{Deserialize, Serialize};
use smtt_common::event::used::{
    CALL_READ_BYTES, CALL_WRITTEN_BYTES, CPU_NS, CPU_WAIT_NS, DISK_READ_BYTES, DISK_WAIT_NS,
    DISK_WRITTEN_BYTES, FAULTS_MAJOR, FAULTS_MINOR, Helper, SWITCHES_INVOLUNTARY,
    SWITCHES_VOLUNTARY, TOUCHED_EITHER_BYTES, TOUCHED_HEAP_BYTES, TOUCHED_NATIVE_BYTES,
};

use crate::state::functions::Service;
use crate::state::{HelperSum, HelperUsed, Used};

/// Figures of an [`UsedRow`].
const FIGURES: usize = 30;

/// Figures of the threads that ran tasks. A figure is absent where the kernel or the JVM does not keep it, or where the
/// task has no first reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedRow {
    /// Time on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns: Option<u64>,
    /// Time in which the thread could run and had no CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_wait_ns: Option<u64>,
    /// Time in which the thread waited for a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_wait_ns: Option<u64>,
    /// Bytes that the thread allocated on the Java heap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_allocated_bytes: Option<u64>,
    /// Time of all collections of the JVM between begin and end; the JVM counts milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection_ns: Option<u64>,
    /// Switches of the CPU from the thread to another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches: Option<u64>,
    /// Switches away from the thread although it could run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches_involuntary: Option<u64>,
    /// The kernel's count of the thread's page faults without a disk access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_minor_faults: Option<u64>,
    /// The kernel's count of the thread's page faults with a disk access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_major_faults: Option<u64>,
    /// Bytes of pages that were not in memory before the thread touched them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
    /// The part of `touched_bytes` in the Java heap; absent where it is not known where the heap is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_heap_bytes: Option<u64>,
    /// The part of `touched_bytes` outside of the Java heap; absent where it is not known where the heap is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_native_bytes: Option<u64>,
    /// Bytes that the thread's system calls read from files and pipes, also from the page cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_read_bytes: Option<u64>,
    /// Bytes that the thread's system calls wrote to files and pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_written_bytes: Option<u64>,
    /// Bytes that the thread had read from a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes: Option<u64>,
    /// Bytes of pages that the thread made dirty and that go to a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_written_bytes: Option<u64>,
    /// Spark's `executorCpuTime`: CPU time of the task's function on its thread. Absent where Spark had not read it yet
    /// when the end was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_cpu_ns: Option<u64>,
    /// Spark's `executorDeserializeCpuTime`: CPU time to deserialise the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_deserialize_cpu_ns: Option<u64>,
    /// Spark's `executorRunTime`, which Spark counts in milliseconds: duration of the task's function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_run_ns: Option<u64>,
    /// Spark's `jvmGcTime`, which Spark counts in milliseconds: collections of the JVM during the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spark_collection_ns: Option<u64>,
    /// Bytes that Spark read from its input: files, and blocks of cached RDDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// Records that Spark read from its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_records: Option<u64>,
    /// Bytes that Spark wrote to its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Records that Spark wrote to its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_records: Option<u64>,
    /// Bytes that Spark read of shuffles, from this and from other machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_read_bytes: Option<u64>,
    /// Records that Spark read of shuffles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_read_records: Option<u64>,
    /// Bytes that Spark wrote for shuffles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_write_bytes: Option<u64>,
    /// Records that Spark wrote for shuffles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle_write_records: Option<u64>,
    /// Bytes that Spark spilled, as they were in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_spilled_bytes: Option<u64>,
    /// Bytes that Spark spilled, as they are on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_spilled_bytes: Option<u64>,
}

/// What threads of one kind used that helped a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperRow {
    /// What the threads do, such as `python writer`.
    pub name: String,
    /// Ended threads whose accounts are in the figures; of `python worker` the ended services of processes.
    pub threads: u64,
    /// Those of `threads` that worked for the task before their first reading: their figures are too small, or absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub partial_threads: u64,
    /// Of `python worker` the processes on the host, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<u32>,
    /// Sums over these threads; none of them is in the figures of the task.
    #[serde(flatten)]
    pub used: UsedRow,
}

impl HelperRow {
    /// The row of a kind of helpers. `services` are those of the task's Python workers.
    pub(super) fn new(of: &HelperUsed, services: &[Service]) -> Self {
        let mut pids = Vec::new();
        if of.helper == Helper::PYTHON_WORKER {
            pids = services.iter().map(|it| it.pid).collect();
            pids.sort_unstable();
            pids.dedup();
        }
        Self {
            name: of.name().to_owned(),
            threads: of.sum.threads,
            partial_threads: of.partial,
            pids,
            used: UsedRow::new(&of.sum.figures),
        }
    }
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What threads used that helped tasks, all kinds together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperSumRow {
    /// Ended threads whose accounts are in the figures.
    pub threads: u64,
    /// Sums over these threads; none of them is in the figures of the tasks.
    #[serde(flatten)]
    pub used: UsedRow,
}

impl HelperSumRow {
    /// Adds the sum of another row.
    pub(super) fn add(&mut self, more: &Self) {
        self.threads = self.threads.saturating_add(more.threads);
        self.used.add(&more.used);
    }

    /// The row of a sum; `None` where no thread helped.
    pub(super) fn new(of: &HelperSum) -> Option<Self> {
        (*of != HelperSum::default()).then(|| Self {
            threads: of.threads,
            used: UsedRow::new(&of.figures),
        })
    }
}

impl UsedRow {
    pub(super) fn new(used: &Used) -> Self {
        let metric = |index: usize| used.metrics.map(|metrics| metrics[index]);
        let time = |index: usize| used.times.map(|times| times[index]);
        let of_ms = |ms: u64| ms.saturating_mul(1_000_000);
        let involuntary = used.account(SWITCHES_INVOLUNTARY);
        let touched = [
            TOUCHED_HEAP_BYTES,
            TOUCHED_NATIVE_BYTES,
            TOUCHED_EITHER_BYTES,
        ];
        let touched = touched.into_iter().filter_map(|part| used.account(part));
        Self {
            cpu_ns: used.account(CPU_NS),
            cpu_wait_ns: used.account(CPU_WAIT_NS),
            disk_wait_ns: used.account(DISK_WAIT_NS),
            heap_allocated_bytes: used.heap_allocated_bytes,
            collection_ns: used.collection_ms.map(of_ms),
            context_switches: used
                .account(SWITCHES_VOLUNTARY)
                .zip(involuntary)
                .map(|(own, forced)| own.saturating_add(forced)),
            context_switches_involuntary: involuntary,
            thread_minor_faults: used.account(FAULTS_MINOR),
            thread_major_faults: used.account(FAULTS_MAJOR),
            touched_bytes: touched.reduce(u64::saturating_add),
            touched_heap_bytes: used.account(TOUCHED_HEAP_BYTES),
            touched_native_bytes: used.account(TOUCHED_NATIVE_BYTES),
            call_read_bytes: used.account(CALL_READ_BYTES),
            call_written_bytes: used.account(CALL_WRITTEN_BYTES),
            disk_read_bytes: used.account(DISK_READ_BYTES),
            disk_written_bytes: used.account(DISK_WRITTEN_BYTES),
            input_bytes: metric(0),
            input_records: metric(1),
            output_bytes: metric(2),
            output_records: metric(3),
            shuffle_read_bytes: metric(4),
            shuffle_read_records: metric(5),
            shuffle_write_bytes: metric(6),
            shuffle_write_records: metric(7),
            memory_spilled_bytes: metric(8),
            disk_spilled_bytes: metric(9),
            spark_cpu_ns: time(0),
            spark_deserialize_cpu_ns: time(1),
            spark_run_ns: time(2).map(of_ms),
            spark_collection_ns: time(3).map(of_ms),
        }
    }

    /// Adds the figures of another row; a figure that one of them lacks is that of the other one.
    pub fn add(&mut self, more: &Self) {
        for (sum, (_, figure)) in self.figures_mut().into_iter().zip(more.figures()) {
            if let Some(figure) = figure {
                *sum = Some(sum.unwrap_or(0).saturating_add(figure));
            }
        }
    }

    /// The figures in the order of [`UsedRow::figures`].
    fn figures_mut(&mut self) -> [&mut Option<u64>; FIGURES] {
        [
            &mut self.cpu_ns,
            &mut self.cpu_wait_ns,
            &mut self.disk_wait_ns,
            &mut self.heap_allocated_bytes,
            &mut self.collection_ns,
            &mut self.context_switches,
            &mut self.context_switches_involuntary,
            &mut self.thread_minor_faults,
            &mut self.thread_major_faults,
            &mut self.touched_bytes,
            &mut self.touched_heap_bytes,
            &mut self.touched_native_bytes,
            &mut self.call_read_bytes,
            &mut self.call_written_bytes,
            &mut self.disk_read_bytes,
            &mut self.disk_written_bytes,
            &mut self.input_bytes,
            &mut self.input_records,
            &mut self.output_bytes,
            &mut self.output_records,
            &mut self.shuffle_read_bytes,
            &mut self.shuffle_read_records,
            &mut self.shuffle_write_bytes,
            &mut self.shuffle_write_records,
            &mut self.memory_spilled_bytes,
            &mut self.disk_spilled_bytes,
            &mut self.spark_cpu_ns,
            &mut self.spark_deserialize_cpu_ns,
            &mut self.spark_run_ns,
            &mut self.spark_collection_ns,
        ]
    }

    /// Each figure with the name of its field.
    pub(super) fn figures(&self) -> [(&'static str, Option<u64>); FIGURES] {
        [
            ("cpu_ns", self.cpu_ns),
            ("cpu_wait_ns", self.cpu_wait_ns),
            ("disk_wait_ns", self.disk_wait_ns),
            ("heap_allocated_bytes", self.heap_allocated_bytes),
            ("collection_ns", self.collection_ns),
            ("context_switches", self.context_switches),
            (
                "context_switches_involuntary",
                self.context_switches_involuntary,
            ),
            ("thread_minor_faults", self.thread_minor_faults),
            ("thread_major_faults", self.thread_major_faults),
            ("touched_bytes", self.touched_bytes),
            ("touched_heap_bytes", self.touched_heap_bytes),
            ("touched_native_bytes", self.touched_native_bytes),
            ("call_read_bytes", self.call_read_bytes),
            ("call_written_bytes", self.call_written_bytes),
            ("disk_read_bytes", self.disk_read_bytes),
            ("disk_written_bytes", self.disk_written_bytes),
            ("input_bytes", self.input_bytes),
            ("input_records", self.input_records),
            ("output_bytes", self.output_bytes),
            ("output_records", self.output_records),
            ("shuffle_read_bytes", self.shuffle_read_bytes),
            ("shuffle_read_records", self.shuffle_read_records),
            ("shuffle_write_bytes", self.shuffle_write_bytes),
            ("shuffle_write_records", self.shuffle_write_records),
            ("memory_spilled_bytes", self.memory_spilled_bytes),
            ("disk_spilled_bytes", self.disk_spilled_bytes),
            ("spark_cpu_ns", self.spark_cpu_ns),
            ("spark_deserialize_cpu_ns", self.spark_deserialize_cpu_ns),
            ("spark_run_ns", self.spark_run_ns),
            ("spark_collection_ns", self.spark_collection_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::TaskUsed;

    use super::*;

    fn row(parts: &[(usize, u64)]) -> UsedRow {
        let mut used = TaskUsed::default();
        for (account, bytes) in parts {
            used.accounts[*account] = *bytes;
            used.present |= 1 << account;
        }
        UsedRow::new(&Used::of_accounts(&used))
    }

    #[test]
    fn memory_that_was_touched_first_is_divided_where_the_heap_is_known() {
        let known = row(&[(TOUCHED_HEAP_BYTES, 4096), (TOUCHED_NATIVE_BYTES, 0)]);
        assert_eq!(
            (
                known.touched_bytes,
                known.touched_heap_bytes,
                known.touched_native_bytes
            ),
            (Some(4096), Some(4096), Some(0))
        );
        let whole = row(&[(TOUCHED_EITHER_BYTES, 8192)]);
        assert_eq!(whole.touched_bytes, Some(8192));
        assert_eq!(
            (whole.touched_heap_bytes, whole.touched_native_bytes),
            (None, None)
        );
        let mut sum = known;
        sum.add(&whole);
        assert_eq!(
            (sum.touched_bytes, sum.touched_heap_bytes),
            (Some(12_288), Some(4096))
        );
        assert_eq!(row(&[(CPU_NS, 1)]).touched_bytes, None);
    }

    #[test]
    fn each_figure_has_its_name() {
        let mut row = UsedRow::default();
        for (number, figure) in row.figures_mut().into_iter().enumerate() {
            *figure = Some(number as u64);
        }
        let json = serde_json::to_value(row).expect("JSON");
        let object = json.as_object().expect("an object");
        assert_eq!(object.len(), FIGURES);
        for (number, (name, figure)) in row.figures().into_iter().enumerate() {
            assert_eq!(figure, Some(number as u64), "{name}");
            assert_eq!(json[name].as_u64(), figure, "{name}");
        }
    }
}
