package io.smtt.marker;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.executor.Executor;

final class AttachedTest {
    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static String name(long attempt) {
        return "Executor task launch worker for task 3.1 in stage 7.2 (TID " + attempt + ")";
    }

    @Test
    void anIdleThreadOfThePoolRunsNoTask() throws InterruptedException {
        Facts.teller();
        CountDownLatch begun = new CountDownLatch(2);
        CountDownLatch end = new CountDownLatch(1);
        Runnable wait = () -> {
            begun.countDown();
            await(end);
        };
        Thread idle = new Thread(wait, name(42));
        Thread busy = new Thread(new Executor().new TaskRunner(wait), name(43));
        idle.start();
        busy.start();
        begun.await();
        try {
            List<Facts.Fact> told = Facts.during(Attached::tellExisting);
            Check.same("facts", 1, told.size());
            Facts.Fact task = told.get(0);
            Check.same("entry", "taskStarted", task.entry);
            Check.same("task", 43, task.word("task_attempt_id"));
            Check.same("stage", 7, task.word("stage_id"));
            Check.same("attempt of the stage", 2, task.word("stage_attempt"));
            Check.same("partition", 3, task.word("partition"));
            Check.same("attempt", 1, task.word("attempt_number"));
            Check.that("the idle thread's task is not listed", !Task.ALIVE.containsKey(42L));
            Check.that("the running task is listed as seen in part", Task.ALIVE.get(43L).partly);
        } finally {
            end.countDown();
            idle.join();
            busy.join();
            Task.ALIVE.clear();
        }
    }
}
