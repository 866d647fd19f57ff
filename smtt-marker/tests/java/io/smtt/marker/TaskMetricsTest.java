package io.smtt.marker;

import java.util.List;
import org.apache.spark.executor.TaskMetrics;

final class TaskMetricsTest {
    private static final String[] WORDS = {
        "input_bytes", "input_records", "output_bytes", "output_records", "shuffle_read_bytes", "shuffle_read_records",
        "shuffle_write_bytes", "shuffle_write_records", "memory_spilled_bytes", "disk_spilled_bytes",
        "cpu_ns", "deserialize_cpu_ns", "run_ms", "collection_ms",
    };
    private static final int TIMES = 10;

    private final ThreadState state = Facts.teller();

    private List<Facts.Fact> end(long attempt, TaskMetrics metrics, boolean whole) {
        Task task = new Task(attempt, 4, 0, 6, 0, 2, Thread.currentThread());
        task.metrics = metrics;
        return Facts.during(() -> {
            task.tellEnd(state, whole);
            task.tellEnd(state, whole);
        });
    }

    private static TaskMetrics known() {
        TaskMetrics metrics = new TaskMetrics();
        metrics.inputMetrics().incBytesRead(1);
        metrics.inputMetrics().incRecordsRead(2);
        metrics.outputMetrics().setBytesWritten(3);
        metrics.outputMetrics().setRecordsWritten(4);
        metrics.shuffleReadMetrics().incRemoteBytesRead(2);
        metrics.shuffleReadMetrics().incLocalBytesRead(3);
        metrics.shuffleReadMetrics().incRecordsRead(6);
        metrics.shuffleWriteMetrics().incBytesWritten(7);
        metrics.shuffleWriteMetrics().incRecordsWritten(8);
        metrics.incMemoryBytesSpilled(9);
        metrics.incDiskBytesSpilled(10);
        metrics.setExecutorCpuTime(11);
        metrics.setExecutorDeserializeCpuTime(12);
        metrics.setExecutorRunTime(13);
        metrics.setJvmGCTime(14);
        return metrics;
    }

    @Test
    void theEndOfATaskSaysWhatSparkCounts() {
        List<Facts.Fact> facts = end(81, known(), true);
        Check.same("facts", 2, facts.size());
        Facts.Fact told = facts.get(0);
        Check.same("before the end", "taskMetrics", told.entry);
        Check.same("task", 81, told.word("task_attempt_id"));
        for (int i = 0; i < WORDS.length; i++) {
            Check.same(WORDS[i], i + 1, told.word(WORDS[i]));
        }
        Check.same("the end", "taskEnded", facts.get(1).entry);
    }

    @Test
    void timesThatSparkHasNotReadAreNone() {
        Facts.Fact told = end(83, known(), false).get(0);
        for (int i = 0; i < WORDS.length; i++) {
            Check.same(WORDS[i], i < TIMES ? i + 1 : -1, told.word(WORDS[i]));
        }
    }

    @Test
    void aTaskWithoutMetricsSaysNothingOfThem() {
        List<Facts.Fact> facts = end(82, null, true);
        Check.same("facts", 1, facts.size());
        Check.same("the end", "taskEnded", facts.get(0).entry);
    }
}
