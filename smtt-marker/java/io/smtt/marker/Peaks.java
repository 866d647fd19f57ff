package io.smtt.marker;

/** Hooks around Spark's own figure of a task's execution memory, {@code peakExecutionMemory}. */
public final class Peaks {
    private Peaks() {}

    /** Entry of {@code updatePeakMemoryUsed} of a sorter or map: Spark updates its recorded peak. */
    public static void seen(Object consumer) {
        try {
            TaskMemory memory = memory();
            if (memory != null) {
                memory.seen(consumer);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code getPeakMemoryUsedBytes}: Spark then counts this consumer, or a larger one beside it. */
    public static void asked(Object consumer) {
        try {
            TaskMemory memory = memory();
            if (memory != null) {
                memory.asked(consumer);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code TaskMetrics.incPeakExecutionMemory}. */
    public static void counted(long bytes) {
        try {
            TaskMemory memory = memory();
            if (memory != null) {
                memory.counted(bytes);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    private static TaskMemory memory() {
        Task task = ThreadState.currentInTask().task;
        return task == null || task.memoryManager == null ? null : Pages.memory(task.memoryManager);
    }
}
