package io.smtt.marker;

/**
 * Bounds what looking up addresses takes: a fifth of one CPU. What is not reached in the first stretch after a collection
 * stays stale until it is. Bounds what is told besides: below the daemon's limit of facts per second, so that telling very
 * many blocks does not lose some of them on the way and is asked for again.
 */
final class Pace {
    private static final long WORK_NS = 2_000_000;
    private static final long REST_MS = 8;
    /** Owners between two looks at the clock. */
    private static final int EVERY = 64;
    /** Facts between two rests: some 15,000 per second. */
    private static final int FACTS = 128;

    private final ThreadState teller;
    private long start = System.nanoTime();
    private long told;
    private int done;

    Pace(ThreadState teller) {
        this.teller = teller;
        told = teller.factsTold();
    }

    /** After each block or page. */
    void step() throws InterruptedException {
        boolean rest = teller.factsTold() - told >= FACTS;
        if (rest || (++done % EVERY == 0 && System.nanoTime() - start > WORK_NS)) {
            Thread.sleep(REST_MS);
            start = System.nanoTime();
            told = teller.factsTold();
        }
    }
}
