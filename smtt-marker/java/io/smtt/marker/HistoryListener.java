package io.smtt.marker;

import java.net.URI;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.history.EventLogFileWriter;
import org.apache.spark.scheduler.EventLoggingListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerApplicationStart;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskGettingResult;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import scala.Option;

/**
 * Takes what the history needs from the listener bus: task attempts become rows; all other events are those that Spark's
 * own event log would have, in the same words, with the same secrets hidden.
 *
 * <p>Every event has a number. A row has the numbers of its task's start and end, so that a reader knows the order of
 * all events. A start is an event of its own only where the task still runs when a part is cut.
 */
final class HistoryListener extends EventLoggingListener {
    /** Tasks that run at most: Spark drops ends of tasks where the queue is full, and such tasks would stay. */
    private static final int RUNNING_MAX = 100_000;
    private static final String STAGE_METRICS = "spark.eventLog.logStageExecutorMetrics";

    private final HistoryParts parts;
    private final Events events;
    private final boolean followsStages;
    /** Tasks that run, by their id; also read by the thread that cuts parts, under the parts' lock. */
    final Map<Long, Running> running = new LinkedHashMap<>();
    private boolean isMuted;

    /** A task that runs. */
    static final class Running {
        final SparkListenerTaskStart event;
        /** The number of its start, or -1 where the start is in an earlier part. */
        long started;

        Running(SparkListenerTaskStart event, long started) {
            this.event = event;
            this.started = started;
        }
    }

    HistoryListener(SparkConf conf, Configuration hadoop, HistoryParts parts) {
        super("history", Option.empty(), URI.create("file:///"), ownConf(conf), hadoop);
        this.parts = parts;
        followsStages = conf.getBoolean(STAGE_METRICS, false);
        events = new Events(ownConf(conf), hadoop);
        parts.beforeCut(this::tellRunning);
    }

    private static SparkConf ownConf(SparkConf conf) {
        return conf.clone()
                .set("spark.eventLog.rolling.enabled", "false")
                .set("spark.eventLog.compress", "false")
                .set("spark.eventLog.logBlockUpdates.enabled", "true");
    }

    /** Where the superclass writes its lines. Its own constructor needs the writer that it makes. */
    @Override
    public EventLogFileWriter logWriter() {
        return events == null ? super.logWriter() : events;
    }

    @Override
    public void onTaskStart(SparkListenerTaskStart event) {
        try {
            synchronized (parts) {
                running.put(event.taskInfo().taskId(), new Running(event, parts.number()));
                if (running.size() > RUNNING_MAX) {
                    running.remove(running.keySet().iterator().next());
                    parts.lostEvent();
                }
            }
        } catch (Throwable e) {
            Warnings.once("a task's start is not in the history", e);
        }
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
        try {
            HistoryRow row = event.taskInfo() == null ? null : new HistoryRow(event);
            if (row == null || !parts.task(row, () -> started(event))) {
                // The end of a task whose start was missed, or a second end: readers know what Spark makes of it.
                super.onTaskEnd(event);
                return;
            }
            if (followsStages) {
                isMuted = true;
                try {
                    super.onTaskEnd(event);
                } finally {
                    isMuted = false;
                }
            }
        } catch (Throwable e) {
            synchronized (parts) {
                started(event);
                parts.lost();
            }
            Warnings.once("a task is not in the history", e);
        }
    }

    /** The number of the start of a task that ends, or null where it is unknown; with the parts' lock. */
    private Long started(SparkListenerTaskEnd event) {
        Running task = event.taskInfo() == null ? null : running.remove(event.taskInfo().taskId());
        return task == null ? null : task.started;
    }

    /** Redundant: the end of the task has the time. */
    @Override
    public void onTaskGettingResult(SparkListenerTaskGettingResult event) {}

    @Override
    public void onApplicationStart(SparkListenerApplicationStart event) {
        super.onApplicationStart(event);
        String id = event.appId().isDefined() ? event.appId().get() : null;
        parts.begin(id, event.appAttemptId().isDefined() ? event.appAttemptId().get() : null);
    }

    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
        super.onStageCompleted(event);
        parts.ended();
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
        super.onJobEnd(event);
        parts.ended();
    }

    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
        super.onApplicationEnd(event);
        parts.ended();
    }

    /** Called with the parts' lock before a part is cut: tasks whose start no part has yet. */
    private void tellRunning() {
        for (Running task : running.values()) {
            if (task.started >= 0) {
                try {
                    parts.started(task.started, events.json(task.event));
                } catch (Throwable e) {
                    Warnings.once("a task's start is not in the history", e);
                }
                task.started = -1;
            }
        }
    }

    /** Takes the lines that the superclass would write to a file. */
    private final class Events extends EventLogFileWriter {
        /** The thread whose lines are wanted: another than the listener's. */
        private volatile Thread keeper;
        private String last;

        Events(SparkConf conf, Configuration hadoop) {
            super("history", Option.empty(), URI.create("file:///"), conf, hadoop);
        }

        /** The line of an event that is no line of its own. */
        String json(SparkListenerTaskStart event) {
            keeper = Thread.currentThread();
            last = null;
            try {
                HistoryListener.super.onTaskStart(event);
                return last;
            } finally {
                keeper = null;
            }
        }

        @Override
        public void start() {}

        @Override
        public void writeEvent(String json, boolean flush) {
            if (Thread.currentThread() == keeper) {
                last = json;
            } else if (!isMuted) {
                parts.event(json);
            }
        }

        @Override
        public void stop() {}

        @Override
        public String logPath() {
            return "";
        }
    }
}
