package io.smtt.marker;

/** What exists already when the agent is attached to a running executor. */
final class Attached {
    private Attached() {}

    /** Tells the executor, its running tasks (by the names of their threads) and its blocks. */
    static void tellExisting() {
        if (!ExecutorIdentity.describe()) {
            // No Spark in this JVM yet: it is told when the first task or block comes.
            return;
        }
        ThreadState teller = ThreadState.current();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            Task task = TaskNames.parse(thread);
            // Its slot follows when the thread itself comes by a hook.
            if (task != null) {
                task.partly = true;
            }
            if (task != null && Task.ALIVE.putIfAbsent(task.attemptId, task) == null) {
                task.tellStart(teller);
            }
        }
        Blocks.scan();
    }
}
