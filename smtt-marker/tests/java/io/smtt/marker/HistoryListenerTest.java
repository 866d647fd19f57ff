package io.smtt.marker;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.example.data.Group;
import org.apache.spark.SparkConf;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;

/** Spark's own listener of event logs asks Hadoop for the user's name, which Hadoop cannot tell on later JDKs. */
final class HistoryListenerTest {
    /** Whenever the parts' lock is free, each task has its start or its end: a part could be cut then. */
    @Test
    void aTaskThatEndsIsNeverInNeither() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            // The application's folder is not known, so nothing is cut.
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            HistoryListener listener = new HistoryListener(new SparkConf(false), new Configuration(false), parts);
            AtomicBoolean isOver = new AtomicBoolean();
            AtomicLong looked = new AtomicLong();
            AtomicLong missing = new AtomicLong();
            Runnable look = () -> {
                while (!isOver.get()) {
                    synchronized (parts) {
                        long accounted = listener.running.size() + 2L * parts.tasks.size();
                        missing.set(Math.max(missing.get(), parts.number - accounted));
                    }
                    looked.incrementAndGet();
                }
            };
            Thread[] threads = {new Thread(look), new Thread(look), new Thread(look), new Thread(look)};
            for (Thread thread : threads) {
                thread.start();
            }
            // Until the other threads have had their chances, and within what may wait.
            for (int task = 0; task < 19_000 && (task < 2_000 || looked.get() < 100_000); task++) {
                TaskInfo info = HistoryPartsTest.info(task);
                listener.onTaskStart(new SparkListenerTaskStart(0, 0, info));
                info.finishTime_$eq(2_000);
                listener.onTaskEnd(HistoryPartsTest.end(info, Success$.MODULE$));
            }
            isOver.set(true);
            for (Thread thread : threads) {
                thread.join();
            }
            Check.same("events that are in neither", 0, missing.get());
        }
    }

    /** Numbers of events are consecutive, so a part that lacks a start or an end has a gap. */
    @Test
    void noPartHasAGap() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            HistoryListener listener = new HistoryListener(new SparkConf(false), new Configuration(false), parts);
            listener.start();
            parts.start();
            parts.begin(HistoryFolder.APPLICATION, null);
            int tasks = 10_000;
            TaskInfo[] infos = new TaskInfo[tasks];
            for (int at = 0; at < tasks; at++) {
                // Five run at a time.
                infos[at] = HistoryPartsTest.info(at);
                listener.onTaskStart(new SparkListenerTaskStart(0, 0, infos[at]));
                if (at >= 5) {
                    infos[at - 5].finishTime_$eq(2_000);
                    listener.onTaskEnd(HistoryPartsTest.end(infos[at - 5], Success$.MODULE$));
                    infos[at - 5] = null;
                }
                while (at % 1_000 == 0 && at - written(folder) > 3_000) {
                    HistoryPartsTest.pause(5);
                }
            }
            parts.finish(System.nanoTime() + 60_000_000_000L);
            Set<Long> seen = new HashSet<>();
            long most = 0;
            List<Path> rows = folder.files("tasks");
            List<List<Group>> documents = folder.parts("meta");
            int ofTasks = 0;
            for (List<Group> part : documents) {
                long own = HistoryFolder.said(part, "tasks");
                Check.same("lost: " + HistoryFolder.said(part), 0,
                        HistoryFolder.said(part, "lostTasks") + HistoryFolder.said(part, "lostEvents"));
                for (Group document : part.subList(1, part.size())) {
                    most = Math.max(most, add(seen, Long.parseLong(document.getString("id", 0))));
                }
                for (Group row : own == 0 ? new ArrayList<Group>() : HistoryFolder.rows(rows.get(ofTasks++))) {
                    if (row.getFieldRepetitionCount("started_event") > 0) {
                        add(seen, row.getLong("started_event", 0));
                    }
                    most = Math.max(most, add(seen, row.getLong("ended_event", 0)));
                }
                Check.same("numbers up to part " + HistoryFolder.said(part), most, seen.size());
            }
            Check.that("parts: " + documents.size(), documents.size() > 3);
            Check.same("starts, ends, and the log's own start", 2 * tasks - 5 + 1, seen.size());
        }
    }

    private static long add(Set<Long> seen, long number) {
        Check.that("event " + number + " is there once", seen.add(number));
        return number;
    }

    /** Tasks in parts. */
    private static long written(HistoryFolder folder) {
        String[] names = folder.store.resolve(HistoryFolder.APPLICATION).toFile().list((path, name) -> name.startsWith("meta-"));
        return names == null ? 0 : names.length * 1_000L;
    }
}
