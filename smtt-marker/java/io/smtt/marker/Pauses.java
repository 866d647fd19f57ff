package io.smtt.marker;

/**
 * Pauses of the collector: each is reported once, soon after it has ended. The JVM's tool interface tells when one begins
 * and ends ({@code collector.rs}); what a collector does beside the application is no pause. While tasks run, a mark once a
 * second says up to when all are reported: without it the daemon could not know that none is missing.
 */
final class Pauses {
    /** Pauses that the native library surely keeps. */
    private static final int KEPT = 63;
    /** G1 of earlier releases stops the application for Remark and Cleanup without an event. */
    private static final int COMPLETE_SINCE = 11;
    static final long MARK_NS = 1_000_000_000;
    /** Marks after the last task: its end may be reported just after the first one. */
    private static final int IDLE_MARKS = 2;

    private static volatile boolean followed;
    /** Number of the next pause to report. */
    private static int next;
    /** The daemon knows from when on all pauses are reported. */
    private static boolean told;
    private static long sinceNs;
    /** Time of the last mark, the tasks that had begun by then, and marks since one ran. */
    static long marked;
    private static long begun;
    private static int idle;

    private Pauses() {}

    /** Whether the JVM of a feature release reports every pause. */
    static boolean areComplete(int release) {
        return release >= COMPLETE_SINCE;
    }

    /** The tool interface reports pauses from now on. */
    static synchronized void start() {
        sinceNs = System.nanoTime();
        followed = true;
    }

    /** Reports what the native library keeps at the next {@link #tell}. */
    static synchronized void again() {
        told = false;
    }

    /** Reports what is left, before the executor ends. */
    static synchronized void last(ThreadState teller) {
        mark(System.nanoTime());
        tell(teller);
    }

    /** A mark is due. */
    private static void mark(long now) {
        marked = now - MARK_NS;
        idle = 0;
    }

    /** Reports the pauses that have ended since the last call, and that these are all. */
    static synchronized void tell(ThreadState teller) {
        if (!followed) {
            return;
        }
        long now = System.nanoTime();
        long started = Task.started();
        boolean works = started != begun || !Task.ALIVE.isEmpty();
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
            mark(now);
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
        if (now - marked >= MARK_NS && (works || idle < IDLE_MARKS)) {
            marked = now;
            begun = started;
            idle = works ? 0 : idle + 1;
            fact(teller, next, System.nanoTime() - now, -1);
        }
    }

    private static void fact(ThreadState teller, int number, long ageNs, long durationNs) {
        teller.facts.begin(FactForm.COLLECTOR_PAUSED)
                .word(Contract.COLLECTOR_PAUSED_NUMBER, number)
                .word(Contract.COLLECTOR_PAUSED_AGE_NS, Math.max(0, ageNs))
                .word(Contract.COLLECTOR_PAUSED_DURATION_NS, durationNs).tell();
    }
}
