package io.smtt.marker;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.spark.api.plugin.PluginContext;

/**
 * Descriptions of RDDs, stages and jobs in an executor: requested from the driver, reported once per change. A request may
 * block, so it runs on a thread of its own.
 *
 * <p>The driver's marker may be of another release. What an earlier one leaves out is empty, what a later one adds at the end
 * of a description is ignored.
 */
final class Descriptions implements Runnable {
    /** While tasks run, and some times after the last one. */
    private static final long ASK_EVERY_MS = 1000;
    /** The driver learns of a stage's and a job's end after its last task. */
    private static final int ASK_AFTERWARDS = 3;
    /** Without tasks, while a job runs that other executors work for: one request in so many. */
    private static final int ASK_SELDOM = 5;
    /** Stopping waits this long for the last answer; the driver may be gone already. */
    private static final long LAST_MS = 500;
    private static final int KEPT = 50_000;

    /** What was told of RDDs and stages, and of jobs. */
    private static final Map<String, Object[]> TOLD = new LinkedHashMap<>();
    private static final Map<String, Object[]> JOBS_TOLD = new LinkedHashMap<>();

    private final PluginContext context;
    private final CountDownLatch stopping = new CountDownLatch(1);
    private final CountDownLatch stopped = new CountDownLatch(1);
    /** Numbers of the last descriptions. */
    private long seen;
    private long jobsSeen;
    /** Jobs that have not ended. */
    private final Set<Object> jobsRunning = new HashSet<>();

    Descriptions(PluginContext context) {
        this.context = context;
        synchronized (TOLD) {
            // Another application in the same JVM has other RDDs with the same ids.
            TOLD.clear();
            JOBS_TOLD.clear();
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
            long rounds = 0;
            int afterwards = ASK_AFTERWARDS;
            long startedBefore = 0;
            while (!last) {
                last = stopping.await(ASK_EVERY_MS, TimeUnit.MILLISECONDS);
                // Short tasks start and end between two requests; their stages have names too.
                long started = Task.started();
                boolean running = started != startedBefore || !Task.ALIVE.isEmpty();
                afterwards = running ? ASK_AFTERWARDS : Math.max(-1, afterwards - 1);
                boolean seldom = !jobsRunning.isEmpty() && ++rounds % ASK_SELDOM == 0;
                if (afterwards >= 0 || seldom || last) {
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
            seen = ask(seen, DriverSide.local(), seen -> seen);
            // A driver's marker of an earlier release does not understand this question, and answers nothing.
            jobsSeen = ask(jobsSeen, DriverSide.localJobs(), seen -> new Object[] {Catalogue.JOB, seen});
        } catch (Throwable e) {
            if (stopping.getCount() > 0) {
                Warnings.once("the driver does not answer, RDDs may have no names (is spark.plugins set there?)", e);
            }
        }
    }

    /** Reports everything described after that number; returns the number of the last description. */
    private long ask(long seen, Catalogue here, Function<Long, Object> question) throws Exception {
        Object[] answer;
        do {
            answer = here != null ? here.since(seen) : (Object[]) context.ask(question.apply(seen));
            for (Object one : answer) {
                Object[] description = (Object[]) one;
                seen = (Long) description[0];
                if (tell(ThreadState.current(), description)) {
                    keep(description);
                }
            }
        } while (answer.length == Catalogue.BATCH);
        return seen;
    }

    private void keep(Object[] description) {
        boolean isJob = description[1].equals(Catalogue.JOB);
        boolean isStage = description[1].equals(Catalogue.STAGE);
        String key = description[1] + "." + description[2] + (isStage ? "." + description[3] : "");
        if (isJob && (Long) description[2 + FactForm.JOB_DESCRIBED.placeOfWord(Contract.JOB_DESCRIBED_ENDED_UNIX_MS)] < 0) {
            if (jobsRunning.size() > KEPT) {
                // Their ends were lost.
                jobsRunning.clear();
            }
            jobsRunning.add(description[2]);
        } else if (isJob) {
            jobsRunning.remove(description[2]);
        }
        Map<String, Object[]> told = isJob ? JOBS_TOLD : TOLD;
        synchronized (TOLD) {
            told.put(key, description);
            if (told.size() > KEPT) {
                told.remove(told.keySet().iterator().next());
            }
        }
    }

    /** Reports a description; false where it is none that this release knows. */
    static boolean tell(ThreadState teller, Object[] description) {
        FactForm form = form(description[1]);
        // After sequence number and kind: words, then strings.
        int strings = form == null ? 0 : 2 + form.words.length;
        if (form == null || description.length < strings) {
            return false;
        }
        for (int at = 2; at < description.length; at++) {
            Class<?> kind = at < strings ? Long.class : String.class;
            if (at < strings + form.strings.length && !kind.isInstance(description[at])) {
                return false;
            }
        }
        FactWriter fact = teller.facts.begin(form);
        for (int i = 0; i < form.words.length; i++) {
            fact.word(form.word(i), (Long) description[2 + i]);
        }
        for (int i = 0; i < form.strings.length; i++) {
            int at = strings + i;
            fact.text(form.string(i), at < description.length ? (String) description[at] : "");
        }
        fact.tell();
        return true;
    }

    private static FactForm form(Object kind) {
        if (Catalogue.RDD.equals(kind)) {
            return FactForm.RDD_DESCRIBED;
        }
        if (Catalogue.STAGE.equals(kind)) {
            return FactForm.STAGE_DESCRIBED;
        }
        return Catalogue.JOB.equals(kind) ? FactForm.JOB_DESCRIBED : null;
    }

    /** Reports every description, for a resync. */
    static void tellAgain(Pace pace) throws InterruptedException {
        List<Object[]> all;
        synchronized (TOLD) {
            all = new ArrayList<>(TOLD.values());
            all.addAll(JOBS_TOLD.values());
        }
        for (Object[] description : all) {
            tell(ThreadState.current(), description);
            pace.step();
        }
    }
}
