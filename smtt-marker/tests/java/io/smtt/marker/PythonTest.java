package io.smtt.marker;

import java.util.List;
import scala.Option;
import scala.Tuple2;

final class PythonTest {
    private static final long PID = 4711;
    private static final long NONE = -1;

    /** Spark's handle of a worker. */
    private final Object worker = new Object();
    private final ThreadState state = Facts.teller();

    private static Task task(long id) {
        return new Task(id, 3, 0, 0, 0, 0, Thread.currentThread());
    }

    /** A task gets the worker from Spark's factory. */
    private void gets(Task task) {
        Task before = state.task;
        state.task = task;
        try {
            Facts.Fact told = Facts.one(() -> Python.created(new Tuple2<Object, Object>(worker, Option.apply((Object) PID))));
            Check.same("fact", "pythonWorker", told.entry);
            Check.same("worker", PID, told.word("pid"));
            Check.same("task", task.attemptId, told.word("task_attempt_id"));
        } finally {
            state.task = before;
        }
    }

    private void isIdle(Facts.Fact told) {
        Check.same("fact", "pythonWorker", told.entry);
        Check.same("worker", PID, told.word("pid"));
        Check.same("task", NONE, told.word("task_attempt_id"));
    }

    @Test
    void aWorkerThatGoesBackToThePoolServesItsTaskNoMore() {
        Task task = task(71);
        gets(task);
        isIdle(Facts.one(() -> Python.released(worker)));
        List<Facts.Fact> facts = Facts.during(() -> {
            Python.released(worker);
            task.tellPythonAgain(state);
            task.releasePython(state);
        });
        Check.same("facts after that", 0, facts.size());
    }

    @Test
    void aTaskThatEndsLeavesAWorkerThatAnotherTaskGot() {
        Task first = task(72);
        Task second = task(73);
        gets(first);
        // The hook of the pool found no target in this Spark.
        gets(second);
        Check.same("facts of the first task's end", 0, Facts.during(() -> first.releasePython(state)).size());
        isIdle(Facts.one(() -> second.releasePython(state)));
    }

    @Test
    void aTaskThatGetsAWorkerTwiceIsServedTwice() {
        Task task = task(74);
        gets(task);
        isIdle(Facts.one(() -> Python.released(worker)));
        gets(task);
        isIdle(Facts.one(() -> task.releasePython(state)));
    }
}
