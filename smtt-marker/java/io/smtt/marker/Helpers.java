package io.smtt.marker;

/** Hooks around threads that work for one task beside the task's own thread: what they use is reported apart from it. */
public final class Helpers {
    private static final long NONE = -1;

    /** One run of a helper. Used by its thread only. */
    static final class Run {
        private final ThreadState state;
        private final int helper;
        /** The task that is helped, or -1 before it is known. */
        private long task = NONE;
        private long allocatedBytes;

        Run(ThreadState state, int helper) {
            this.state = state;
            this.helper = helper;
        }

        boolean isA(int kind) {
            return helper == kind;
        }

        /** The task is known: what the thread uses from now on is used for it. */
        void begin(long attemptId) {
            if (task != NONE) {
                return;
            }
            task = attemptId;
            try {
                allocatedBytes = Accounts.allocated();
                Accounts.bringUpToDate();
                state.facts.begin(FactForm.HELPER_BEGUN)
                        .word(Contract.HELPER_BEGUN_TASK_ATTEMPT_ID, task)
                        .word(Contract.HELPER_BEGUN_HELPER, helper).tell();
            } catch (Throwable e) {
                // Such as a native library of an earlier marker.
                Warnings.once("what helpers of tasks use is not reported", e);
            }
        }

        void end() {
            if (task == NONE) {
                return;
            }
            try {
                long allocated = Accounts.grown(allocatedBytes, Accounts.allocated());
                Accounts.bringUpToDate();
                state.facts.begin(FactForm.HELPER_ENDED)
                        .word(Contract.HELPER_ENDED_TASK_ATTEMPT_ID, task)
                        .word(Contract.HELPER_ENDED_HELPER, helper)
                        .word(Contract.HELPER_ENDED_ALLOCATED_BYTES, allocated).tell();
            } catch (Throwable e) {
                Warnings.once("what helpers of tasks use is not reported", e);
            }
            task = NONE;
        }
    }

    private Helpers() {}

    /** Entry of a helper's {@code run}. It sets the context of its task there, which {@link Tasks#set} sees. */
    public static Object begin(int hook) {
        try {
            ThreadState state = ThreadState.current();
            state.helping = new Run(state, HookTable.at(hook).helper);
            return state.helping;
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    /** Exit of a helper's {@code run}. A thread of a pool goes on to other work, so the task is no longer its own. */
    public static void end(Object open) {
        if (open == null) {
            return;
        }
        Run run = (Run) open;
        ThreadState state = run.state;
        try {
            run.end();
        } finally {
            state.helping = null;
            if (state.context != null) {
                // The thread may end without another hook.
                state.context.clear();
            }
        }
    }
}
