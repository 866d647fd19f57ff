package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

/** The marker's own thread: serves resyncs, follows the collector, releases the slots of dead threads. */
final class Background implements Runnable {
    private static final int POLL_MS = 200;
    /** Time between two sweeps of dead threads, and between two comparisons with the memory store. */
    private static final long SWEEP_NS = 1_000_000_000;

    private static boolean started;

    private Background() {}

    static synchronized void start() {
        if (started) {
            return;
        }
        started = true;
        Thread thread = new Thread(new Background(), "smtt-marker");
        thread.setDaemon(true);
        // This thread must not keep an application's class loader alive.
        thread.setContextClassLoader(null);
        thread.start();
    }

    @Override
    public void run() {
        long polled = polledCollections();
        long swept = System.nanoTime();
        int ended = 0;
        while (true) {
            try {
                if (Addresses.followed()) {
                    ended = Native.waitForCollection(ended, POLL_MS);
                } else {
                    Thread.sleep(POLL_MS);
                }
                // Before all that takes its time: the daemon waits a few seconds for them.
                if (ExecutorIdentity.known()) {
                    Pauses.tell(ThreadState.current());
                }
                resync();
                if (Addresses.followed()) {
                    Addresses.refresh(ThreadState.current());
                } else if (polled != polledCollections()) {
                    polled = polledCollections();
                    Pace pace = new Pace(ThreadState.current());
                    Blocks.tellMoved(pace);
                    Pages.tellMoved(pace);
                }
                if (ExecutorIdentity.known()) {
                    MemoryPeaks.tick(ThreadState.current());
                    MemoryFigures.tick(ThreadState.current());
                }
                if (System.nanoTime() - swept >= SWEEP_NS) {
                    swept = System.nanoTime();
                    ThreadState.sweep();
                    ThreadState.tellRunning();
                    ExecutorIdentity.refreshMissing();
                    if (!Transformer.installed()) {
                        Blocks.scan();
                    }
                }
            } catch (InterruptedException e) {
                return;
            } catch (Throwable e) {
                Warnings.once("the background thread failed", e);
                pause();
            }
        }
    }

    /** Waits after a failure, so that a permanent failure does not use a whole CPU. */
    private static void pause() {
        try {
            Thread.sleep(POLL_MS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static long polledCollections() {
        long sum = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            sum += Math.max(0, collector.getCollectionCount());
        }
        return sum;
    }

    /** Reports a snapshot of everything that is alive if the daemon requests it. Its facts are idempotent. */
    private static void resync() throws InterruptedException {
        long request = SlotFile.resyncRequest();
        if (request == 0) {
            return;
        }
        ThreadState teller = ThreadState.current();
        told(teller, request, 0);
        long before = teller.factsTold();
        ExecutorIdentity.again();
        Pace pace = new Pace(teller);
        Descriptions.tellAgain(pace);
        for (Task task : Task.ALIVE.values()) {
            task.tellStart(teller);
            task.tellPythonAgain(teller);
            pace.step();
        }
        Blocks.tellAgain(pace);
        Pages.tellAgain(pace);
        MemoryFigures.again();
        MemoryPeaks.again();
        Pauses.again();
        told(teller, request, teller.factsTold() - before);
        teller.facts.begin(FactForm.RESYNC_DONE).word(Contract.RESYNC_DONE_REQUEST, request).tell();
        SlotFile.resyncDone(request);
        Addresses.toldAgain();
    }

    /**
     * Reports the number of facts of a resync so far: the daemon counts the arrivals and accepts only a complete
     * snapshot.
     */
    private static void told(ThreadState teller, long request, long facts) {
        teller.facts.begin(FactForm.RESYNC_TOLD)
                .word(Contract.RESYNC_TOLD_REQUEST, request)
                .word(Contract.RESYNC_TOLD_FACTS, facts).tell();
    }
}
