package io.smtt.marker;

/**
 * Limits the CPU time of address look-ups to a fifth of one CPU. Addresses that are not reached in the first interval
 * after a collection stay stale until they are. Also limits the facts per second below the daemon's limit, so that a
 * large snapshot loses no facts and need not be requested again.
 */
final class Pace {
    private static final long WORK_NS = 2_000_000;
    private static final long REST_MS = 8;
    /** Owners between two reads of the clock. */
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
