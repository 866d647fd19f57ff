package io.smtt.marker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.parquet.example.data.Group;
import org.apache.spark.Success$;
import org.apache.spark.TaskEndReason;
import org.apache.spark.TaskKilled;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskLocality;
import scala.collection.Seq;
import scala.collection.immutable.Nil$;

final class HistoryPartsTest {
    private static final int MIB = 1 << 20;
    private static final long LIMIT_NS = 60_000_000_000L;

    static TaskInfo info(long task) {
        return new TaskInfo(task, (int) task, 0, (int) task, 1_000, "1", "host", TaskLocality.ANY(), false);
    }

    static SparkListenerTaskEnd end(TaskInfo info, TaskEndReason reason) {
        return new SparkListenerTaskEnd(0, 0, "ResultTask", reason, info, null, null);
    }

    private static HistoryRow row(long task, TaskEndReason reason) throws Exception {
        TaskInfo info = info(task);
        info.finishTime_$eq(2_000);
        return new HistoryRow(end(info, reason));
    }

    private static TaskKilled killed(String reason) {
        return new TaskKilled(reason, none(), none(), none());
    }

    @SuppressWarnings("unchecked")
    private static <T> Seq<T> none() {
        return (Seq<T>) (Object) Nil$.MODULE$;
    }

    /** A text of its own on the heap. */
    private static String text(int length) {
        return new String(new byte[length], java.nio.charset.StandardCharsets.ISO_8859_1);
    }

    /** The runner's JVM has 128 MiB: without the bound it has no memory left. */
    @Test
    void whatWaitsForAStoreThatHangsIsBoundedInBytes() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            CountDownLatch asked = new CountDownLatch(1);
            CountDownLatch hangs = new CountDownLatch(1);
            HistoryParts parts = new HistoryParts(folder.open(() -> {
                asked.countDown();
                await(hangs);
            }), () -> 0);
            parts.start();
            // Some are in the part that hangs, others wait behind it.
            for (int i = 0; i < 20; i++) {
                parts.event(text(MIB));
            }
            parts.begin(HistoryFolder.APPLICATION, null);
            Check.that("the store is asked", asked.await(60, TimeUnit.SECONDS));
            for (int i = 20; i < 120; i++) {
                parts.event(text(MIB));
            }
            TaskKilled killed = killed(text(MIB));
            for (int i = 0; i < 50; i++) {
                Check.that("its start is known", parts.task(row(i, killed), () -> 1L));
            }
            hangs.countDown();
            parts.finish(System.nanoTime() + LIMIT_NS);
            long events = 0;
            long lostEvents = 0;
            long lostTasks = 0;
            List<List<Group>> said = folder.parts("meta");
            for (List<Group> part : said) {
                events += HistoryFolder.said(part, "events");
                lostEvents = HistoryFolder.said(part, "lostEvents");
                lostTasks = HistoryFolder.said(part, "lostTasks");
            }
            long tasks = 0;
            for (List<Group> part : folder.parts("tasks")) {
                tasks += part.size();
            }
            Check.same("events kept: 48 MiB with two bytes for each character", 23, events);
            Check.same("events", 120, events + lostEvents);
            Check.same("tasks", 50, tasks + lostTasks);
            Check.that("a task of 1 MiB has no place: " + tasks, tasks == 0);
            Check.same("the last part", 1, said.get(said.size() - 1).isEmpty() ? 0 : 1);
        }
    }

    @Test
    void tasksAreBoundedInBytesToo() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            TaskKilled killed = killed(text(MIB));
            for (int i = 0; i < 60; i++) {
                parts.task(row(i, killed), () -> 1L);
            }
            parts.begin(HistoryFolder.APPLICATION, null);
            parts.start();
            parts.finish(System.nanoTime() + LIMIT_NS);
            Check.same("tasks kept", 23, folder.parts("tasks").get(0).size());
            Check.same("tasks lost", 37, HistoryFolder.said(folder.parts("meta").get(0), "lostTasks"));
        }
    }

    /** A part is due while a task's start is forgotten and its end is not there yet. */
    @Test
    void aCutWaitsUntilATaskThatEndedIsThere() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            List<String> running = new ArrayList<>();
            running.add("a start");
            // A part without anything would not be written.
            parts.event("{}");
            parts.beforeCut(() -> running.forEach(start -> parts.started(2, start)));
            parts.start();
            CountDownLatch forgotten = new CountDownLatch(1);
            HistoryRow row = row(7, Success$.MODULE$);
            Thread begins = new Thread(() -> {
                await(forgotten);
                parts.begin(HistoryFolder.APPLICATION, null);
            });
            begins.start();
            parts.task(row, () -> {
                running.clear();
                forgotten.countDown();
                // Time for a cut that does not wait.
                pause(500);
                return 2L;
            });
            begins.join();
            parts.finish(System.nanoTime() + LIMIT_NS);
            List<List<Group>> tasks = folder.parts("tasks");
            Check.same("parts with tasks", 1, tasks.size());
            Check.same("the first part's task", 7, tasks.get(0).get(0).getLong("task_id", 0));
            Check.same("tasks of the first part", 1, HistoryFolder.said(folder.parts("meta").get(0), "tasks"));
        }
    }

    static void await(CountDownLatch latch) {
        try {
            latch.await(60, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
