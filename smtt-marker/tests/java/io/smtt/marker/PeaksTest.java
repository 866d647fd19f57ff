package io.smtt.marker;

import java.util.List;

final class PeaksTest {
    private static final class Sorter {}

    private final ThreadState state = Facts.teller();

    @Test
    void sparksMomentsReachTheMemoryOfTheTask() {
        Task task = new Task(31, 4, 0, 6, 0, 2, Thread.currentThread());
        Object manager = new Object();
        task.memoryManager = manager;
        Task.ALIVE.put(task.attemptId, task);
        state.task = task;
        try {
            Object sorter = new Sorter();
            TaskMemory memory = Pages.memory(manager);
            Check.that("the memory is the task's", task.memory == memory);
            memory.grant(sorter, 80, state);
            Peaks.seen(sorter);
            memory.grant(sorter, 20, state);
            Peaks.asked(sorter);
            Peaks.counted(999);
            List<Facts.Fact> end = Facts.during(() -> task.tellEnd(state, true));
            Check.same("facts: one class of consumers, and the end", 2, end.size());
            Check.same("counted", 80, end.get(0).word("counted_bytes"));
            Check.same("peak of the class", 100, end.get(0).word("peak_bytes"));
            Check.same("peak of the task", 100, end.get(1).word("execution_memory_peak_bytes"));
            Check.same("outcome", Contract.OUTCOME_SUCCESS, end.get(1).word("outcome"));
            Check.same("facts of a second end", 0, Facts.during(() -> task.tellEnd(state, true)).size());
        } finally {
            state.task = null;
            Task.ALIVE.remove(task.attemptId);
        }
    }

    @Test
    void withoutATaskNothingIsTold() {
        Check.same("facts", 0, Facts.during(() -> {
            Peaks.seen(this);
            Peaks.asked(this);
            Peaks.counted(5);
        }).size());
    }
}
