package io.smtt.marker;

/**
 * Pauses of the collector: each is reported once, soon after it has ended. The JVM's tool interface tells when one begins
 * and ends ({@code collector.rs}); what a collector does beside the application is no pause.
 *
 * <p>Used by the marker's thread only, but for {@link #start}.
 */
final class Pauses {
    /** Pauses that the native library surely keeps. */
    private static final int KEPT = 63;

    private static volatile boolean followed;
    /** Number of the next pause to report. */
    private static int next;
    /** The daemon knows from when on all pauses are reported. */
    private static boolean told;
    private static long sinceNs;

    private Pauses() {}

    /** The tool interface reports pauses from now on. */
    static void start() {
        sinceNs = System.nanoTime();
        followed = true;
    }

    /** Reports what the native library keeps at the next {@link #tell}. */
    static void again() {
        told = false;
    }

    /** Reports the pauses that have ended since the last call. */
    static void tell(ThreadState teller) {
        if (!followed) {
            return;
        }
        int ended;
        try {
            ended = Native.pauses();
        } catch (UnsatisfiedLinkError older) {
            followed = false;
            Warnings.once("pauses of the collector are not reported: the native library is of an earlier release", null);
            return;
        }
        if (!told) {
            told = true;
            next = Math.max(0, ended - KEPT);
            long since = next == 0 ? sinceNs : Native.pause(next, false);
            fact(teller, next, since == 0 ? 0 : System.nanoTime() - since, -1);
        }
        // Older ones are lost, and their numbers say so.
        next = Math.max(next, ended - KEPT);
        for (; next < ended; next++) {
            long begin = Native.pause(next, false);
            // The end is read last: it is 0 where another pause has taken the place meanwhile.
            long end = Native.pause(next, true);
            if (begin != 0 && end != 0) {
                fact(teller, next, System.nanoTime() - end, Math.max(1, end - begin));
            }
        }
    }

    private static void fact(ThreadState teller, int number, long ageNs, long durationNs) {
        teller.facts.begin(FactForm.COLLECTOR_PAUSED)
                .word(Contract.COLLECTOR_PAUSED_NUMBER, number)
                .word(Contract.COLLECTOR_PAUSED_AGE_NS, Math.max(0, ageNs))
                .word(Contract.COLLECTOR_PAUSED_DURATION_NS, durationNs).tell();
    }
}
