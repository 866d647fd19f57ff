package io.smtt.marker;

/** Reports what exists already when the agent is attached to a running executor. */
final class Attached {
    /** The frame of a task, from its launch until its result is sent. */
    private static final String TASK_RUNNER = "org.apache.spark.executor.Executor$TaskRunner";

    private Attached() {}

    /** Reports the executor, its running tasks (by the names of their threads) and its blocks. */
    static void tellExisting() {
        if (!ExecutorIdentity.describe()) {
            // No Spark in this JVM yet: the executor is reported with the first task or block.
            return;
        }
        ThreadState teller = ThreadState.current();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            Task task = TaskNames.parse(thread);
            if (task == null) {
                continue;
            }
            // The thread gets its slot at its first hook.
            task.partly = true;
            if (Task.ALIVE.putIfAbsent(task.attemptId, task) == null) {
                // The stack is read after the task is listed: if the task ends later than this, a hook reports its end.
                if (stillRuns(thread, task)) {
                    task.tellStart(teller);
                } else {
                    Task.ALIVE.remove(task.attemptId, task);
                }
            }
        }
        Blocks.scan();
    }

    private static boolean stillRuns(Thread thread, Task task) {
        if (!runsTask(thread.getStackTrace())) {
            return false;
        }
        Task named = TaskNames.parse(thread);
        return named != null && named.attemptId == task.attemptId;
    }

    /** Whether a thread with this stack runs a task: an idle thread of the pool keeps the name of its last one. */
    static boolean runsTask(StackTraceElement[] stack) {
        for (StackTraceElement frame : stack) {
            if (frame.getClassName().equals(TASK_RUNNER)) {
                return true;
            }
        }
        return false;
    }
}
