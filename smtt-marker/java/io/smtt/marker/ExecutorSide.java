package io.smtt.marker;

import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;

/**
 * The plugin in an executor: reports the executor before its first task, and requests descriptions from the driver.
 * Without the agent it also reports tasks, but not their activities.
 *
 * <p>An exception from a plugin ends the executor, and Spark restarts it forever: no exception may escape.
 */
public final class ExecutorSide implements ExecutorPlugin {
    private Descriptions descriptions;

    /** Made by {@link SmttPlugin}. */
    public ExecutorSide() {}

    @Override
    public void init(PluginContext context, Map<String, String> extra) {
        try {
            FactLog.open();
            if (!Native.load()) {
                return;
            }
            ExecutorIdentity.refresh();
            if (Transformer.installed()) {
                Warnings.state(ExecutorIdentity.summary());
            } else {
                Warnings.once("no agent in this JVM: tasks are reported, their activities are not", null);
            }
            descriptions = new Descriptions(context);
            descriptions.start();
        } catch (Throwable e) {
            Warnings.once("the plugin is switched off in this executor", e);
        }
    }

    @Override
    public void onTaskStart() {
        try {
            if (Native.loaded() && !Transformer.installed()) {
                Tasks.set(TaskContext.get());
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    @Override
    public void onTaskSucceeded() {
        taskEnded(Contract.OUTCOME_SUCCESS, "");
    }

    @Override
    public void onTaskFailed(TaskFailedReason reason) {
        try {
            boolean killed = reason.getClass().getName().endsWith("TaskKilled");
            taskEnded(killed ? Contract.OUTCOME_KILLED : Contract.OUTCOME_FAILED, reason.toErrorString());
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    private static void taskEnded(long outcome, String reason) {
        try {
            if (!Native.loaded() || Transformer.installed()) {
                return;
            }
            ThreadState state = ThreadState.current();
            if (state.task != null) {
                state.task.outcome = outcome;
                state.task.reason = reason;
                Tasks.finish(state, state.task);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    @Override
    public void shutdown() {
        try {
            if (Native.loaded() && ExecutorIdentity.known()) {
                MemoryPeaks.last(ThreadState.current());
                Pauses.last(ThreadState.current());
            }
            if (descriptions != null) {
                descriptions.stop();
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }
}
