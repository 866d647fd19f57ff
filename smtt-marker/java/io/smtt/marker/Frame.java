package io.smtt.marker;

/** State of a rewritten method between its entry and its exit. */
final class Frame {
    final ThreadState thread;
    /** Hot word before. */
    final long before;
    /** Pipeline before. */
    final Pipeline pipeline;
    /** Whether the pipeline was suspended before. */
    final boolean outside;
    /** Whether this scope suspends the pipeline. */
    boolean pulls;
    /** Hook of the method. */
    final Hook hook;
    /** Start, {@code System.nanoTime()}. */
    final long startNs;
    /** RDD bits of the scope. */
    long rdd;
    /** Data of the hook for the exit. */
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
