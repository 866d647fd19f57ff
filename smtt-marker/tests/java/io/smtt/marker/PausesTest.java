package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;

final class PausesTest {
    private static final long MS = 1_000_000;

    private final ThreadState state = Facts.teller();

    private List<Facts.Fact> told() {
        List<Facts.Fact> facts = new ArrayList<>();
        for (Facts.Fact fact : Facts.during(() -> Pauses.tell(state))) {
            if (fact.entry.equals("collectorPaused")) {
                facts.add(fact);
            }
        }
        return facts;
    }

    /** The pauses alone, without marks. */
    private List<Facts.Fact> pauses() {
        List<Facts.Fact> facts = told();
        facts.removeIf(fact -> fact.word("duration_ns") == -1);
        return facts;
    }

    /** Number and milliseconds of all collections, as the JVM counts them. */
    private static long[] counted() {
        long[] sum = new long[2];
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            sum[0] += collector.getCollectionCount();
            sum[1] += collector.getCollectionTime();
        }
        return sum;
    }

    private static void collect(int times) {
        for (int i = 0; i < times; i++) {
            System.gc();
        }
    }

    @Test
    void eachPauseIsToldOnceWithItsTimes() {
        told();
        long[] before = counted();
        long begin = System.nanoTime();
        collect(5);
        long end = System.nanoTime();
        long[] after = counted();
        List<Facts.Fact> facts = pauses();
        long passed = System.nanoTime() - begin;
        Check.same("pauses", after[0] - before[0], facts.size());
        Check.that("each collection is one", facts.size() >= 5);
        long sum = 0;
        long last = passed;
        for (int i = 0; i < facts.size(); i++) {
            Facts.Fact fact = facts.get(i);
            Check.same("number", facts.get(0).word("number") + i, fact.word("number"));
            long age = fact.word("age_ns");
            long duration = fact.word("duration_ns");
            // Each age is of its own report, and this thread may wait for a CPU in between.
            Check.that("after the one before it: " + fact.line, age + duration <= last + 100 * MS);
            Check.that("it is a pause: " + fact.line, duration > 0);
            sum += duration;
            last = age;
        }
        Check.that("within the calls", sum <= end - begin);
        // The JVM counts whole milliseconds of each, a little within the tool interface's events.
        long counted = (after[1] - before[1]) * MS;
        Check.that(sum + " ns, the JVM has " + counted, sum >= counted - MS * facts.size());
        Check.same("told again", 0, pauses().size());
    }

    @Test
    void whatIsKeptIsToldAgainAndWhatIsLostHasANumber() {
        told();
        collect(2);
        List<Facts.Fact> facts = pauses();
        long last = facts.get(facts.size() - 1).word("number");
        Pauses.again();
        facts = told();
        Facts.Fact since = facts.get(0);
        Check.same("no pause", -1, since.word("duration_ns"));
        Check.same("from this one on", since.word("number"), facts.get(1).word("number"));
        Check.that("before it", since.word("age_ns") >= facts.get(1).word("age_ns"));
        Check.same("to the last", last, facts.get(facts.size() - 2).word("number"));
        collect(70);
        facts = pauses();
        Check.same("kept", 63, facts.size());
        Check.that("a gap in the numbers", facts.get(0).word("number") > last + 1);
    }

    @Test
    void aMarkASecondSaysThatAllIsToldWhileTasksRun() {
        collect(1);
        Pauses.again();
        List<Facts.Fact> facts = told();
        Facts.Fact mark = facts.get(facts.size() - 1);
        Check.same("no pause", -1, mark.word("duration_ns"));
        Check.same("the next one", facts.get(facts.size() - 2).word("number") + 1, mark.word("number"));
        Check.that("now", mark.word("age_ns") < 1_000 * MS);
        Check.same("no second has passed", 0, atOnce());
        Task task = new Task(77, 0, 0, 0, 0, -1, Thread.currentThread());
        Task.ALIVE.put(task.attemptId, task);
        try {
            for (int i = 0; i < 5; i++) {
                Check.same("while one runs", 1, aSecondLater());
            }
        } finally {
            Task.ALIVE.remove(task.attemptId);
        }
        Check.same("its end may come after the first one", 2, aSecondLater() + aSecondLater());
        Check.same("no task", 0, aSecondLater() + aSecondLater());
        Check.that("at the end", Facts.during(() -> Pauses.last(state)).size() >= 1);
        Check.same("and not again", 0, atOnce());
    }

    private int aSecondLater() {
        Pauses.marked = System.nanoTime() - Pauses.MARK_NS;
        return marks();
    }

    /** However long this thread has waited for a processor. */
    private int atOnce() {
        Pauses.marked = System.nanoTime() + Pauses.MARK_NS;
        return marks();
    }

    private int marks() {
        List<Facts.Fact> facts = told();
        facts.removeIf(fact -> fact.word("duration_ns") != -1);
        return facts.size();
    }

    @Test
    void earlierJvmsDoNotReportEachPause() {
        Check.that("Java 8 and 9", !Pauses.areComplete(1) && !Pauses.areComplete(9));
        Check.that("Java 11 and later", Pauses.areComplete(11) && Pauses.areComplete(25));
    }
}
