package org.apache.spark.executor;

/** Stands in for Spark's executor: only the frame of a task on a thread's stack is needed. */
public final class Executor {
    /** Runs something in a frame with the name of Spark's task runner; an inner class, as Spark's is. */
    public final class TaskRunner implements Runnable {
        private final Runnable task;

        public TaskRunner(Runnable task) {
            this.task = task;
        }

        @Override
        public void run() {
            task.run();
        }
    }
}
