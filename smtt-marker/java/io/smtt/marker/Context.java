package io.smtt.marker;

/**
 * The hot path: what a thread is doing now, as one ordered store on entering and one on leaving.
 *
 * <p>Ordered stores and not plain ones: the compiler moves or drops plain stores without a use in between. Not volatile
 * stores either: the reader is an interrupt of this very thread, so no hardware fence is needed, and a fence would cost
 * ten times more.
 */
public final class Context {
    private Context() {}

    /** The current thread's state: looked up once for entering and leaving, because that is most of the cost. */
    public static ThreadState thread() {
        return ThreadState.current();
    }

    /**
     * Enters a function of the framework.
     *
     * @param tag activity, access and region; the RDD is the one that is being materialised on this thread
     * @return what to hand to {@link #exit}
     */
    public static long enter(ThreadState state, long tag) {
        long slot = state.slot;
        long before = Memory.getLong(slot);
        Pipeline pipeline = state.pipeline;
        long rdd = pipeline != null ? pipeline.rdd : before & Words.RDD_BITS;
        Memory.putLongOrdered(slot, tag | rdd);
        Memory.loadFence();
        state.show(tag | rdd);
        return before;
    }

    /** Leaves the function: restores the previous word. */
    public static void exit(ThreadState state, long before) {
        Memory.putLongOrdered(state.slot, before);
        state.show(before);
    }
}
