package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

/** The marker's own thread: serves resyncs, follows the collector, takes back what dead threads held. */
final class Background implements Runnable {
    private static final long POLL_MS = 200;
    /** Polls between two sweeps of dead threads and two looks at the memory store: one second. */
    private static final int SWEEP_EVERY = 5;

    private static boolean started;

    private Background() {}

    static synchronized void start() {
        if (started) {
            return;
        }
        started = true;
        Thread thread = new Thread(new Background(), "smtt-marker");
        thread.setDaemon(true);
        // An application's class loader must not be kept alive by this thread.
        thread.setContextClassLoader(null);
        thread.start();
    }

    @Override
    public void run() {
        long collections = collections();
        for (int poll = 1; ; poll++) {
            try {
                Thread.sleep(POLL_MS);
                resync();
                long now = collections();
                if (now != collections) {
                    collections = now;
                    Blocks.tellMoved();
                    Pages.tellMoved();
                }
                if (poll % SWEEP_EVERY == 0) {
                    ThreadState.sweep();
                    ExecutorIdentity.refreshMissing();
                    if (!Transformer.installed()) {
                        Blocks.scan();
                    }
                }
            } catch (InterruptedException e) {
                return;
            } catch (Throwable e) {
                Warnings.once("the background thread failed", e);
            }
        }
    }

    private static long collections() {
        long sum = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            sum += Math.max(0, collector.getCollectionCount());
        }
        return sum;
    }

    /** Tells everything that is alive again if the daemon asks for it. Everything told here may have been told before. */
    private static void resync() {
        long request = SlotFile.resyncRequest();
        if (request == 0) {
            return;
        }
        ThreadState teller = ThreadState.current();
        ExecutorIdentity.again();
        Descriptions.tellAgain();
        for (Task task : Task.ALIVE.values()) {
            task.tellStart(teller);
            task.tellPythonAgain(teller);
        }
        Blocks.tellAgain();
        Pages.tellAgain();
        teller.facts.begin(FactForm.RESYNC_DONE).word(request).tell();
        SlotFile.resyncDone(request);
    }
}
