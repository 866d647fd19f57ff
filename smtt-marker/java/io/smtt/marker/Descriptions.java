package io.smtt.marker;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.plugin.PluginContext;

/**
 * Descriptions of RDDs, stages and jobs in an executor: requested from the driver, reported once per change. A request may
 * block, so it runs on a thread of its own.
 */
final class Descriptions implements Runnable {
    /** While tasks run, and some times after the last one. */
    private static final long ASK_EVERY_MS = 1000;
    /** The driver learns of a stage's and a job's end after its last task. */
    private static final int ASK_AFTERWARDS = 3;
    /** Stopping waits this long for the last answer; the driver may be gone already. */
    private static final long LAST_MS = 500;
    private static final int KEPT = 50_000;

    private static final Map<String, Object[]> TOLD = new LinkedHashMap<>();

    private final PluginContext context;
    private final CountDownLatch stopping = new CountDownLatch(1);
    private final CountDownLatch stopped = new CountDownLatch(1);
    private long seen;

    Descriptions(PluginContext context) {
        this.context = context;
        synchronized (TOLD) {
            // Another application in the same JVM has other RDDs with the same ids.
            TOLD.clear();
        }
    }

    void start() {
        Thread thread = new Thread(this, "smtt-descriptions");
        thread.setDaemon(true);
        thread.start();
    }

    void stop() throws InterruptedException {
        stopping.countDown();
        stopped.await(LAST_MS, TimeUnit.MILLISECONDS);
    }

    @Override
    public void run() {
        try {
            boolean last = false;
            int afterwards = ASK_AFTERWARDS;
            long startedBefore = 0;
            while (!last) {
                last = stopping.await(ASK_EVERY_MS, TimeUnit.MILLISECONDS);
                // Short tasks start and end between two requests; their stages have names too.
                long started = Task.started();
                boolean running = started != startedBefore || !Task.ALIVE.isEmpty();
                afterwards = running ? ASK_AFTERWARDS : afterwards - 1;
                if (afterwards >= 0 || last) {
                    ask();
                }
                startedBefore = started;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            stopped.countDown();
        }
    }

    private void ask() {
        try {
            if (!ExecutorIdentity.describe()) {
                // The executor is not described yet: facts would belong to no executor, and each is sent only once.
                return;
            }
            Object[] answer;
            do {
                Catalogue here = DriverSide.local();
                answer = here != null ? here.since(seen) : (Object[]) context.ask(seen);
                for (Object one : answer) {
                    Object[] description = (Object[]) one;
                    keep(description);
                    tell(ThreadState.current(), description);
                    seen = (Long) description[0];
                }
            } while (answer.length == Catalogue.BATCH);
        } catch (Throwable e) {
            if (stopping.getCount() > 0) {
                Warnings.once("the driver does not answer, RDDs may have no names (is spark.plugins set there?)", e);
            }
        }
    }

    private static void keep(Object[] description) {
        String key = description[1] + "." + description[2] + (description[1].equals(Catalogue.STAGE) ? "." + description[3] : "");
        synchronized (TOLD) {
            TOLD.put(key, description);
            if (TOLD.size() > KEPT) {
                TOLD.remove(TOLD.keySet().iterator().next());
            }
        }
    }

    private static void tell(ThreadState teller, Object[] description) {
        FactForm form = description[1].equals(Catalogue.RDD) ? FactForm.RDD_DESCRIBED
                : description[1].equals(Catalogue.JOB) ? FactForm.JOB_DESCRIBED : FactForm.STAGE_DESCRIBED;
        FactWriter fact = teller.facts.begin(form);
        // After sequence number and kind, as StageListener put them together.
        int at = 2;
        for (int i = 0; i < form.words.length; i++) {
            fact.word(form.word(i), (Long) description[at++]);
        }
        for (int i = 0; i < form.strings.length; i++) {
            fact.text(form.string(i), (String) description[at++]);
        }
        fact.tell();
    }

    /** Reports every description, for a resync. */
    static void tellAgain(Pace pace) throws InterruptedException {
        Object[][] all;
        synchronized (TOLD) {
            all = TOLD.values().toArray(new Object[0][]);
        }
        for (Object[] description : all) {
            tell(ThreadState.current(), description);
            pace.step();
        }
    }
}
