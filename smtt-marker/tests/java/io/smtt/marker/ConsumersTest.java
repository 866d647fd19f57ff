package io.smtt.marker;

import java.lang.reflect.Array;
import java.util.List;

/** Has the name of Spark's collection of objects, of which Spark counts an estimate. */
final class ExternalSorter {}

final class ConsumersTest {
    private static final long TASK = 9;

    private final Consumers consumers = new Consumers();

    private static final class Sorter {}

    private static final class Table {}

    private static final String SORTER = "ConsumersTest$Sorter";

    private Facts.Fact told(String name) {
        Facts.Fact found = null;
        for (Facts.Fact fact : Facts.during(() -> consumers.tell(Facts.teller(), TASK))) {
            Check.same("entry", "consumerUsed", fact.entry);
            Check.same("task", TASK, fact.word("task_attempt_id"));
            if (fact.text("consumer").equals(name)) {
                Check.that(name + " is reported once", found == null);
                found = fact;
            }
        }
        Check.that(name + " is reported", found != null);
        return found;
    }

    @Test
    void peaksOfInstancesAddUp() {
        Object first = new Sorter();
        Object second = new Sorter();
        consumers.of(first).hold(10);
        consumers.of(first).hold(-4);
        // Two more than ever before.
        consumers.of(first).hold(6);
        consumers.of(first).hold(-9);
        consumers.of(first).hold(5);
        consumers.of(second).hold(7);
        consumers.of(new Table()).hold(100);
        Facts.Fact told = told(SORTER);
        Check.same("instances", 2, told.word("instances"));
        Check.same("peak", 19, told.word("peak_bytes"));
        Check.same("counted", 0, told.word("counted_bytes"));
        Check.same("peak of the other class", 100, told("ConsumersTest$Table").word("peak_bytes"));
    }

    @Test
    void whatSparkSawIsCountedWhenSparkCounts() {
        Object sorter = new Sorter();
        consumers.of(sorter).hold(10);
        consumers.seen(sorter);
        consumers.of(sorter).hold(20);
        Check.same("before it counts", 0, told(SORTER).word("counted_bytes"));
        consumers.asked(sorter);
        consumers.counted(12345);
        Facts.Fact told = told(SORTER);
        Check.same("counted: what was held when Spark looked", 10, told.word("counted_bytes"));
        Check.same("peak", 30, told.word("peak_bytes"));
        Check.same("flags", 0, told.word("flags"));
    }

    @Test
    void ofThoseThatWereAskedTheLargestCounts() {
        Object small = new Sorter();
        Object large = new Table();
        consumers.of(small).hold(10);
        consumers.of(large).hold(30);
        consumers.seen(small);
        consumers.seen(large);
        consumers.asked(large);
        consumers.asked(small);
        consumers.counted(1);
        Check.same("the larger", 30, told("ConsumersTest$Table").word("counted_bytes"));
        Check.same("the smaller", 0, told(SORTER).word("counted_bytes"));
        // Those before were counted: only who is asked from now on counts.
        consumers.asked(small);
        consumers.counted(1);
        Check.same("the smaller, alone", 10, told(SORTER).word("counted_bytes"));
        Check.same("the larger, once", 30, told("ConsumersTest$Table").word("counted_bytes"));
    }

    @Test
    void ofObjectsSparksEstimateCounts() {
        Object sorter = new ExternalSorter();
        consumers.of(sorter).hold(10);
        consumers.seen(sorter);
        consumers.asked(sorter);
        consumers.counted(4000);
        Facts.Fact told = told("ExternalSorter");
        Check.same("counted", 4000, told.word("counted_bytes"));
        Check.same("flags", Contract.CONSUMER_ESTIMATED, told.word("flags"));
        Check.same("peak: what was granted", 10, told.word("peak_bytes"));
    }

    @Test
    void whatNoConsumerWasAskedForIsUnknown() {
        consumers.counted(500);
        Facts.Fact told = told("unknown");
        Check.same("counted", 500, told.word("counted_bytes"));
        Check.same("instances", 0, told.word("instances"));
        Check.same("flags", Contract.CONSUMER_ESTIMATED, told.word("flags"));
    }

    @Test
    void ofATaskThatWasSeenInPartNothingIsCounted() {
        consumers.of(new Sorter()).hold(10);
        consumers.incomplete();
        Check.same("counted", -1, told(SORTER).word("counted_bytes"));
        Check.same("peak", 10, told(SORTER).word("peak_bytes"));
        Facts.Fact unseen = Facts.one(() -> Consumers.tellUnknown(Facts.teller(), TASK));
        Check.same("consumer", "unknown", unseen.text("consumer"));
        Check.same("counted of a task without memory", -1, unseen.word("counted_bytes"));
    }

    @Test
    void classesBeyondTheBoundFallTogether() {
        // Arrays of ever more dimensions: each has a class of its own.
        for (int dimensions = 1; dimensions <= 40; dimensions++) {
            consumers.of(Array.newInstance(int.class, new int[dimensions])).hold(1);
        }
        List<Facts.Fact> told = Facts.during(() -> consumers.tell(Facts.teller(), TASK));
        Check.same("classes: the bound, and the others", 33, told.size());
        Facts.Fact others = told("others");
        Check.same("instances", 8, others.word("instances"));
        Check.same("bytes", 8, others.word("peak_bytes"));
    }

    @Test
    void whatWasCountedOutlivesWhatIsHeld() {
        Object sorter = new Sorter();
        consumers.of(sorter).hold(10);
        consumers.seen(sorter);
        consumers.asked(sorter);
        consumers.counted(1);
        consumers.clear();
        Check.same("counted", 10, told(SORTER).word("counted_bytes"));
        consumers.of(sorter).hold(1);
        Check.same("a new instance", 2, told(SORTER).word("instances"));
    }
}
