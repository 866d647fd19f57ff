package io.smtt.marker;

import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;

final class HelpersTest {
    private static final int MIB = 1 << 20;

    private static volatile byte[] last;

    @Test
    void aHelperSaysWhatItsThreadAllocatedForItsTask() {
        ThreadState state = Facts.teller();
        Object[] open = new Object[1];
        Check.same("facts before the task is known", 0, Facts.during(() -> open[0] = Helpers.begin(hook())).size());
        Facts.Fact begun = Facts.one(() -> state.helping.begin(81));
        Check.same("fact", "helperBegun", begun.entry);
        Check.same("task", 81, begun.word("task_attempt_id"));
        Check.same("helper", Contract.HELPER_PYTHON_WRITER, begun.word("helper"));
        for (int i = 0; i < 64; i++) {
            last = new byte[MIB];
        }
        Check.same("facts of the same begin", 0, Facts.during(() -> state.helping.begin(81)).size());
        Facts.Fact ended = Facts.one(() -> Helpers.end(open[0]));
        Check.same("fact", "helperEnded", ended.entry);
        Check.same("task", 81, ended.word("task_attempt_id"));
        Check.same("helper", Contract.HELPER_PYTHON_WRITER, ended.word("helper"));
        long bytes = ended.word("allocated_bytes");
        Check.that("64 MiB within 1 %: " + bytes, bytes >= 64L * MIB && bytes <= 64L * MIB * 101 / 100);
        Check.that("the thread helps no task any more", state.helping == null);
    }

    @Test
    void aHelperWithoutATaskReportsNothing() {
        Object[] open = new Object[1];
        List<Facts.Fact> facts = Facts.during(() -> {
            open[0] = Helpers.begin(hook());
            Helpers.end(open[0]);
            Helpers.end(open[0]);
        });
        Check.same("facts", 0, facts.size());
    }

    @Test
    void aHelperThatBeginsAfterItsTaskEndedIsNotTheTasksThread() {
        TaskContext context = TaskContext$.MODULE$.empty();
        Check.that("the task has ended", !Task.ALIVE.containsKey(context.taskAttemptId()));
        Facts.teller().register();
        List<Facts.Fact> facts = Facts.during(() -> {
            Object open = Helpers.begin(hook());
            Tasks.set(context);
            Tasks.unset();
            Helpers.end(open);
        });
        Check.that("no task begins", !Task.ALIVE.containsKey(context.taskAttemptId()));
        Check.same("facts", 0, facts.size());
    }

    @Test
    void aPythonWriterIsKnownByItsHook() {
        TaskContext context = TaskContext$.MODULE$.empty();
        long id = context.taskAttemptId();
        ThreadState state = Facts.teller();
        Task task = new Task(id, 0, 0, 0, 0, 0, new Thread());
        // Spark's manager of its memory is known, and has no pages to find.
        task.memoryManager = new Object();
        Task.ALIVE.put(id, task);
        try {
            Object open = Helpers.begin(hook());
            Tasks.set(context);
            Check.same("activity", Contract.ACTIVITY_PYTHON_EXCHANGE, Words.activity(state.hot()));
            Tasks.unset();
            Helpers.end(open);
        } finally {
            Task.ALIVE.remove(id);
        }
    }

    /** The row of a Python writer. */
    private static int hook() {
        for (int at = 0;; at++) {
            if (HookTable.at(at).helper == Contract.HELPER_PYTHON_WRITER) {
                return at;
            }
        }
    }
}
