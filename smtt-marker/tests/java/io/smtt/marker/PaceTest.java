package io.smtt.marker;

final class PaceTest {
    private final ThreadState teller = Facts.teller();

    private void tell(int facts) {
        for (int i = 0; i < facts; i++) {
            teller.facts.begin(FactForm.RESYNC_DONE).word(Contract.RESYNC_DONE_REQUEST, i).tell();
        }
    }

    /** Whether a step rests: a thread that was interrupted cannot. */
    private static boolean rests(Pace pace) {
        Thread.currentThread().interrupt();
        try {
            pace.step();
            return false;
        } catch (InterruptedException e) {
            return true;
        } finally {
            Thread.interrupted();
        }
    }

    @Test
    void factsAreBounded() throws InterruptedException {
        Pace pace = new Pace(teller);
        tell(127);
        Check.that("no rest after 127 facts", !rests(pace));
        tell(1);
        Check.that("a rest after 128", rests(pace));
        long start = System.nanoTime();
        pace.step();
        Check.that("it lasts 8 ms", System.nanoTime() - start >= 8_000_000);
        Check.that("no rest right after it", !rests(pace));
        tell(128);
        Check.that("a rest after 128 more", rests(pace));
    }

    @Test
    void workIsBounded() throws InterruptedException {
        Pace pace = new Pace(teller);
        Thread.sleep(3);
        for (int i = 1; i < 64; i++) {
            Check.that("the clock is not read at step " + i, !rests(pace));
        }
        Check.that("a rest at the 64th step, after 2 ms of work", rests(pace));
    }

    @Test
    void factsBeforeItDoNotCount() {
        tell(1000);
        Check.that("no rest", !rests(new Pace(teller)));
    }
}
