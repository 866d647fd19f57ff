package io.smtt.marker;

/** One run of the executor's task runner: from before the task is deserialised until its result is sent. */
final class TaskFrame {
    final ThreadState thread;
    final long attemptId;
    private final long startNs = System.nanoTime();
    /** Job of the task; unknown before {@code Task.run}. */
    int jobId = -1;
    /** The last state that the executor reported to its driver: FINISHED, FAILED or KILLED. */
    String state = "";

    TaskFrame(ThreadState thread, long attemptId) {
        this.thread = thread;
        this.attemptId = attemptId;
    }

    /** The task is deserialised: reports the time until now as its deserialisation. */
    void tellDeserialized() {
        Scopes.span(thread, attemptId, Contract.ACTIVITY_TASK_DESERIALIZE, startNs, -1, "Executor.TaskRunner.deserialize");
    }
}
