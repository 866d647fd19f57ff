package io.smtt.marker;

/**
 * Bounds what looking up addresses takes: a fifth of one CPU. What is not reached in the first stretch after a collection
 * stays stale until it is.
 */
final class Pace {
    private static final long WORK_NS = 2_000_000;
    private static final long REST_MS = 8;
    /** Owners between two looks at the clock. */
    private static final int EVERY = 64;

    private long start = System.nanoTime();
    private int done;

    /** After each block or page. */
    void step() throws InterruptedException {
        if (++done % EVERY == 0 && System.nanoTime() - start > WORK_NS) {
            Thread.sleep(REST_MS);
            start = System.nanoTime();
        }
    }
}
