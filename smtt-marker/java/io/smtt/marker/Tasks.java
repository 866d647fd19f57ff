package io.smtt.marker;

import java.nio.ByteBuffer;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.Executor;
import org.apache.spark.executor.ExecutorBackend;
import scala.Enumeration;
import scala.Option;

/** Hooks around tasks: which task a thread works for, from when to when, and how it ended. */
public final class Tasks {
    private static final long DESERIALIZE = Words.tag(Contract.ACTIVITY_TASK_DESERIALIZE, Contract.ACCESS_NONE, Contract.REGION_NONE);
    private static final long RESULT = Words.tag(Contract.ACTIVITY_RESULT_SERIALIZE, Contract.ACCESS_NONE, Contract.REGION_NONE);
    private static final long PYTHON = Words.tag(Contract.ACTIVITY_PYTHON_EXCHANGE, Contract.ACCESS_NONE, Contract.REGION_NONE);

    private Tasks() {}

    /** Entry of the executor's task runner: everything until the task is set is deserialising it. */
    public static Object begin(int hook, Object runner) {
        try {
            ThreadState state = ThreadState.current();
            TaskFrame frame = new TaskFrame(state, ((Executor.TaskRunner) runner).taskId());
            state.runner = frame;
            state.register();
            state.work(new Task(frame.attemptId, -1, 0, 0, 0, -1, state.thread), DESERIALIZE);
            state.accounts.begin(state, frame.attemptId, false);
            return frame;
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    /** Exit of the task runner: the task's end, with the state that the executor reported. */
    public static void end(Object open) {
        if (open == null) {
            return;
        }
        TaskFrame frame = (TaskFrame) open;
        ThreadState state = frame.thread;
        try {
            Task task = Task.ALIVE.remove(frame.attemptId);
            if (task == null) {
                // The task could not be deserialised, or was killed before it ran: Spark counts it all the same.
                task = TaskNames.parse(state.thread, frame.attemptId);
                task.reason = "ended before it ran";
                task.tellStart(state);
            }
            if (!frame.state.equals("FINISHED")) {
                task.outcome = frame.state.equals("KILLED") ? Contract.OUTCOME_KILLED : Contract.OUTCOME_FAILED;
            } else {
                task.outcome = Contract.OUTCOME_SUCCESS;
                task.reason = "";
            }
            task.tellEnd(state, true);
        } catch (Throwable e) {
            Scopes.failed(e);
        } finally {
            state.runner = null;
            state.leavePipeline();
            state.work(null, 0);
        }
    }

    /** A call of {@code ExecutorBackend.statusUpdate} in the task runner. */
    public static void statusUpdate(ExecutorBackend backend, long taskId, Enumeration.Value taskState, ByteBuffer data) {
        try {
            TaskFrame frame = ThreadState.current().runner;
            if (frame != null && frame.attemptId == taskId) {
                frame.state = taskState.toString();
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
        backend.statusUpdate(taskId, taskState, data);
    }

    /** Entry of {@code Task.run}, the only place that knows the job. */
    public static void job(Object task) {
        try {
            TaskFrame frame = ThreadState.current().runner;
            Option<?> job = ((org.apache.spark.scheduler.Task<?>) task).jobId();
            if (frame != null && job != null && job.isDefined()) {
                frame.jobId = ((Number) job.get()).intValue();
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** A thread works for a task from now on: the task's own thread, or a helper (a Python writer, a pipe). */
    public static void set(Object given) {
        try {
            TaskContext context = (TaskContext) given;
            if (context == null) {
                return;
            }
            ThreadState state = ThreadState.current();
            state.register();
            Task task = Task.ALIVE.get(context.taskAttemptId());
            if (task == null && state.helping != null) {
                // The task has ended before its helper began: the helper's thread is not the task's own.
                return;
            }
            if (task == null) {
                task = new Task(context, state.runner == null ? -1 : state.runner.jobId);
                Task before = Task.ALIVE.putIfAbsent(task.attemptId, task);
                if (before == null) {
                    task.tellStart(state);
                    if (state.runner != null) {
                        state.runner.tellDeserialized();
                    }
                } else {
                    task = before;
                }
            }
            if (task.memoryManager == null) {
                // Known from its thread's name only (attached while it ran).
                task.memoryManager = context.taskMemoryManager();
                task.metrics = context.taskMetrics();
                Pages.adopt(task);
            }
            boolean main = task.thread == state.thread;
            if (main && state.runner == null) {
                state.accounts.begin(state, task.attemptId, true);
            }
            if (!main && state.helping != null) {
                state.helping.begin(task.attemptId);
            }
            state.outside = false;
            state.pipeline = main ? task.pipeline : new Pipeline(task.pipeline.rdd);
            state.work(task, (!main && isPythonWriter(state) ? PYTHON : Words.COMPUTE_TAG) | task.pipeline.rdd);
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** A writer that runs in a pool, or that serves a Python function of SQL, is known by its hook only. */
    private static boolean isPythonWriter(ThreadState state) {
        return state.helping != null && state.helping.isA(Contract.HELPER_PYTHON_WRITER)
                || Thread.currentThread().getClass().getName().contains("PythonRunner$");
    }

    /** The thread no longer works for its task. The task's own thread then makes and sends the result. */
    public static void unset() {
        try {
            // For a task that was running when the agent was attached, this may be the only hook.
            ThreadState state = ThreadState.currentInTask();
            Task task = state.task;
            if (task == null) {
                return;
            }
            state.leavePipeline();
            if (task.thread != state.thread) {
                state.work(null, 0);
            } else {
                task.releasePython(state);
                if (state.runner != null) {
                    state.hot(RESULT | task.pipeline.rdd);
                } else {
                    finish(state, task);
                }
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Ends a task whose start was not hooked (the agent was attached later, or only the plugin is loaded). */
    static void finish(ThreadState state, Task task) {
        if (Task.ALIVE.remove(task.attemptId, task)) {
            task.tellEnd(state, false);
        }
        state.work(null, 0);
    }

    /** A task threw: records the reason, and whether it was killed. */
    public static void failed(Object context, Object error) {
        try {
            Task task = Task.ALIVE.get(((TaskContext) context).taskAttemptId());
            if (task != null) {
                boolean killed = ((TaskContext) context).isInterrupted();
                task.outcome = killed ? Contract.OUTCOME_KILLED : Contract.OUTCOME_FAILED;
                task.reason = String.valueOf(error);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }
}
