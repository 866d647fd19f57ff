package io.smtt.marker;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.TaskEndReason;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.TaskKilled;
import org.apache.spark.executor.ExecutorMetrics;
import org.apache.spark.executor.ShuffleReadMetrics;
import org.apache.spark.executor.ShuffleWriteMetrics;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.TaskInfo;
import scala.Option;
import scala.collection.Iterable;
import scala.collection.Iterator;

/** A task attempt that ended, as a row of the table {@code tasks}, with its rows of {@code task_sql}. */
final class HistoryRow implements HistoryStore.Row {
    /** A number that is absent. */
    static final long ABSENT = Long.MIN_VALUE;
    /** Longest text of an accumulator's value, in bytes. */
    private static final int LONGEST_VALUE = 4096;
    /** Longest message of a failed task, in bytes. */
    private static final int LONGEST_MESSAGE = 1 << 20;
    /** Bytes of a row without its texts. */
    private static final long ROW_BYTES = 1_500;

    /** Methods that only some versions of Spark have; null where this one does not. */
    private static final Method ON_HEAP = method("peakOnHeapExecutionMemory");
    private static final Method OFF_HEAP = method("peakOffHeapExecutionMemory");
    /** Peaks that this Spark knows. */
    private static final boolean[] KNOWN = new boolean[HistoryTable.PEAKS.length];
    private static boolean hasLooked;
    private static Method accumulables;

    /** Numbers and texts in the order of the table's columns. */
    final long[] numbers = new long[HistoryTable.TASKS.width()];
    final String[] texts = new String[HistoryTable.TASKS.width()];
    /** Accumulator, value, accumulator, value, ... */
    final long[] sql;
    /** SQL metrics whose value is no integer. */
    final int unreadable;
    private int next;
    private int refused;

    HistoryRow(SparkListenerTaskEnd event) throws Exception {
        TaskInfo info = event.taskInfo();
        Arrays.fill(numbers, ABSENT);
        put(event.stageId());
        put(event.stageAttemptId());
        put(info.taskId());
        put(info.index());
        put(info.attemptNumber());
        put(info.partitionId());
        put(info.executorId());
        put(info.host());
        put(info.launchTime());
        put(info.finishTime() == 0 ? ABSENT : info.finishTime() - info.launchTime());
        put(info.gettingResultTime() == 0 ? ABSENT : info.gettingResultTime());
        put(info.finishTime() == 0 ? "RUNNING" : info.failed() ? "FAILED" : info.killed() ? "KILLED" : "SUCCESS");
        put(String.valueOf(info.taskLocality()));
        put(info.speculative() ? 1 : 0);
        put(event.taskType());
        put(event.reason().getClass().getSimpleName().replace("$", ""));
        put(message(event.reason()));
        List<Long> values = new ArrayList<>();
        put(accumulators(info, values));
        sql = new long[values.size()];
        for (int i = 0; i < sql.length; i++) {
            sql[i] = values.get(i);
        }
        unreadable = refused;
        // Spark reads a task without metrics as one whose metrics are zero.
        put(1);
        metrics(event.taskMetrics());
        peaks(event.taskExecutorMetrics());
    }

    /** The numbers of the events that started and ended the task; the first is negative where an earlier part has it. */
    void events(long started, long ended) {
        numbers[numbers.length - 2] = started < 0 ? ABSENT : started;
        numbers[numbers.length - 1] = ended;
    }

    /** What it takes on the heap at most, about: a string has two bytes for each character unless all are of Latin-1. */
    long bytes() {
        long bytes = ROW_BYTES + 8L * sql.length;
        for (String text : texts) {
            bytes += text == null ? 0 : 2L * text.length();
        }
        return bytes;
    }

    @Override
    public long number(int column) {
        return numbers[column];
    }

    @Override
    public String text(int column) {
        return texts[column];
    }

    /** Adds the rows of its SQL metrics. */
    void sql(List<HistoryStore.Row> rows) {
        for (int i = 0; i < sql.length; i += 2) {
            rows.add(new Sql(new long[] {numbers[0], numbers[1], sql[i], numbers[2], sql[i + 1]}));
        }
    }

    /** A row of {@code task_sql}. */
    private static final class Sql implements HistoryStore.Row {
        private final long[] numbers;

        Sql(long[] numbers) {
            this.numbers = numbers;
        }

        @Override
        public long number(int column) {
            return numbers[column];
        }

        @Override
        public String text(int column) {
            return null;
        }
    }

    private void put(long value) {
        numbers[next++] = value;
    }

    private void put(String value) {
        texts[next++] = value;
    }

    /** The message that Spark shows. */
    private static String message(TaskEndReason reason) {
        if (reason instanceof TaskKilled) {
            return ((TaskKilled) reason).reason();
        }
        return reason instanceof TaskFailedReason ? cut(((TaskFailedReason) reason).toErrorString(), LONGEST_MESSAGE) : null;
    }

    private void metrics(TaskMetrics metrics) throws Exception {
        if (metrics == null) {
            for (int i = 0; i < HistoryTable.METRICS; i++) {
                put(0);
            }
            next += 2;
            return;
        }
        put(metrics.executorDeserializeTime());
        put(metrics.executorDeserializeCpuTime());
        put(metrics.executorRunTime());
        put(metrics.executorCpuTime());
        put(metrics.resultSize());
        put(metrics.jvmGCTime());
        put(metrics.resultSerializationTime());
        put(metrics.memoryBytesSpilled());
        put(metrics.diskBytesSpilled());
        put(metrics.peakExecutionMemory());
        put(metrics.inputMetrics().bytesRead());
        put(metrics.inputMetrics().recordsRead());
        put(metrics.outputMetrics().bytesWritten());
        put(metrics.outputMetrics().recordsWritten());
        ShuffleReadMetrics read = metrics.shuffleReadMetrics();
        put(read.remoteBlocksFetched());
        put(read.localBlocksFetched());
        put(read.fetchWaitTime());
        put(read.remoteBytesRead());
        put(read.remoteBytesReadToDisk());
        put(read.localBytesRead());
        put(read.recordsRead());
        int before = next;
        try {
            put(read.remoteReqsDuration());
            put(read.corruptMergedBlockChunks());
            put(read.mergedFetchFallbackCount());
            put(read.remoteMergedBlocksFetched());
            put(read.localMergedBlocksFetched());
            put(read.remoteMergedChunksFetched());
            put(read.localMergedChunksFetched());
            put(read.remoteMergedBytesRead());
            put(read.localMergedBytesRead());
            put(read.remoteMergedReqsDuration());
        } catch (LinkageError olderThanSpark35) {
            Arrays.fill(numbers, before, before + 10, 0);
            next = before + 10;
        }
        ShuffleWriteMetrics write = metrics.shuffleWriteMetrics();
        put(write.bytesWritten());
        put(write.writeTime());
        put(write.recordsWritten());
        put(ON_HEAP == null ? ABSENT : (Long) ON_HEAP.invoke(metrics));
        put(OFF_HEAP == null ? ABSENT : (Long) OFF_HEAP.invoke(metrics));
    }

    private void peaks(ExecutorMetrics peaks) {
        if (peaks != null) {
            look(peaks);
        }
        // Spark's value for peaks that were not measured.
        boolean isTaken = peaks != null && KNOWN[0] && peaks.getMetricValue(HistoryTable.PEAKS[0]) >= 0;
        for (int i = 0; i < HistoryTable.PEAKS.length; i++) {
            put(isTaken && KNOWN[i] ? peaks.getMetricValue(HistoryTable.PEAKS[i]) : ABSENT);
        }
    }

    private static synchronized void look(ExecutorMetrics peaks) {
        if (hasLooked) {
            return;
        }
        for (int i = 0; i < KNOWN.length; i++) {
            try {
                peaks.getMetricValue(HistoryTable.PEAKS[i]);
                KNOWN[i] = true;
            } catch (RuntimeException unknownToThisSpark) {
                KNOWN[i] = false;
            }
        }
        hasLooked = true;
    }

    /** Accumulators of the application as JSON, or null; and the SQL metrics. */
    private String accumulators(TaskInfo info, List<Long> sqlValues) throws Exception {
        StringBuilder json = null;
        if (accumulables == null) {
            // The type that it returns differs between Scala 2.12 and 2.13.
            accumulables = TaskInfo.class.getMethod("accumulables");
        }
        List<AccumulableInfo> all = new ArrayList<>();
        for (Iterator<?> each = ((Iterable<?>) accumulables.invoke(info)).iterator(); each.hasNext(); ) {
            all.add((AccumulableInfo) each.next());
        }
        // As the event log has them.
        all.sort((left, right) -> Long.compare(left.id(), right.id()));
        for (AccumulableInfo one : all) {
            boolean isSql = one.metadata().isDefined() && "sql".equals(one.metadata().get());
            if (isSql && one.update().isDefined()) {
                try {
                    long value = Long.parseLong(String.valueOf(one.update().get()));
                    sqlValues.add(one.id());
                    sqlValues.add(value);
                } catch (NumberFormatException e) {
                    refused++;
                }
            } else if (!isSql && !one.internal()) {
                json = (json == null ? new StringBuilder("[{") : json.append(",{")).append("\"id\":").append(one.id());
                field(json, "name", one.name(), false);
                field(json, "update", one.update(), true);
                field(json, "value", one.value(), true);
                json.append('}');
            }
        }
        return json == null ? null : json.append(']').toString();
    }

    private static void field(StringBuilder json, String name, Option<?> value, boolean isCut) {
        if (value.isEmpty() || value.get() == null) {
            return;
        }
        String text = value.get().toString();
        quote(json.append(",\"").append(name).append("\":"), isCut ? cut(text, LONGEST_VALUE) : text);
    }

    /** The beginning of a long text, in whole characters. */
    static String cut(String text, int longest) {
        // Three bytes for a character at most; what is surely left out is not encoded.
        byte[] bytes = text == null || text.length() * 3L <= longest
                ? null : text.substring(0, Math.min(text.length(), longest + 1)).getBytes(StandardCharsets.UTF_8);
        if (bytes == null || bytes.length <= longest) {
            return text;
        }
        int end = longest;
        while ((bytes[end] & 0xC0) == 0x80) {
            end--;
        }
        return new String(bytes, 0, end, StandardCharsets.UTF_8) + "...";
    }

    static void quote(StringBuilder json, String text) {
        json.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            int known = "\b\f\n\r\t\"\\".indexOf(c);
            if (known >= 0) {
                json.append('\\').append("bfnrt\"\\".charAt(known));
            } else if (c < ' ') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        json.append('"');
    }

    private static Method method(String name) {
        try {
            return TaskMetrics.class.getMethod(name);
        } catch (ReflectiveOperationException | LinkageError onlyFromSpark4) {
            return null;
        }
    }
}
