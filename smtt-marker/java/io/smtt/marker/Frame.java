package io.smtt.marker;

/** What a rewritten method keeps between its entry and its exit. */
final class Frame {
    final ThreadState thread;
    /** Hot word before. */
    final long before;
    /** Pipeline before. */
    final Pipeline pipeline;
    /** Whether it stood aside before. */
    final boolean outside;
    /** Whether it stands aside for this scope. */
    boolean pulls;
    /** Hook that it belongs to. */
    final Hook hook;
    /** Start, {@code System.nanoTime()}. */
    final long startNs;
    /** RDD bits that it counts for. */
    long rdd;
    /** What the hook needs at the exit. */
    Object subject;

    Frame(ThreadState thread, Hook hook) {
        this.thread = thread;
        this.hook = hook;
        before = thread.hot();
        pipeline = thread.pipeline;
        outside = thread.outside;
        startNs = System.nanoTime();
        rdd = pipeline != null ? pipeline.rdd : before & Words.RDD_BITS;
    }
}
