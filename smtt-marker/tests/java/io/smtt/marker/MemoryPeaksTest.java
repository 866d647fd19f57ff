package io.smtt.marker;

import java.util.List;

final class MemoryPeaksTest {
    private static final long MIB = 1 << 20;

    private final ThreadState state = Facts.teller();

    /** The value of a metric in the fact of a stage (-1 for the executor), or -1. */
    private static long peak(List<Facts.Fact> facts, long stage, int metric) {
        String[] figure = figure(facts, stage, metric);
        return figure == null ? -1 : Long.parseLong(figure[1]);
    }

    /** Time since a metric had that value, in milliseconds. */
    private static long age(List<Facts.Fact> facts, long stage, int metric) {
        return Long.parseUnsignedLong(figure(facts, stage, metric)[0], 16) >>> Contract.FIGURE_AGE_SHIFT;
    }

    private static String[] figure(List<Facts.Fact> facts, long stage, int metric) {
        for (Facts.Fact fact : facts) {
            if (fact.entry.equals("peaksTold") && fact.word("stage_id") == stage) {
                for (String pair : fact.text("ranges").split(",")) {
                    String[] parts = pair.split("\\+");
                    if ((Long.parseUnsignedLong(parts[0], 16) & 0xff) == metric) {
                        return parts;
                    }
                }
            }
        }
        return null;
    }

    @Test
    void aStageHasThePeaksOfItsOwnTimeOnly() {
        MemoryPeaks.see(5 * MIB, 0, 0, 0);
        MemoryPeaks.began(900, 0);
        MemoryPeaks.see(30 * MIB, 2 * MIB, 0, 0);
        MemoryPeaks.began(901, 1);
        MemoryPeaks.ended(900, 0);
        MemoryPeaks.see(50 * MIB, 0, 7 * MIB, 9 * MIB);
        MemoryPeaks.see(0, 0, 0, 0);
        MemoryPeaks.ended(901, 1);
        MemoryPeaks.see(60 * MIB, 0, 0, 0);
        List<Facts.Fact> facts = Facts.during(() -> MemoryPeaks.last(state));
        Check.same("first stage", 30 * MIB, peak(facts, 900, Contract.PEAK_ONHEAPEXECUTIONMEMORY));
        Check.same("first stage, both pools", 32 * MIB, peak(facts, 900, Contract.PEAK_ONHEAPUNIFIEDMEMORY));
        Check.same("first stage, off heap", 0, peak(facts, 900, Contract.PEAK_OFFHEAPUNIFIEDMEMORY));
        Check.same("second stage", 50 * MIB, peak(facts, 901, Contract.PEAK_ONHEAPEXECUTIONMEMORY));
        Check.same("second stage, off heap", 16 * MIB, peak(facts, 901, Contract.PEAK_OFFHEAPUNIFIEDMEMORY));
        Check.same("executor", 60 * MIB, peak(facts, -1, Contract.PEAK_ONHEAPEXECUTIONMEMORY));
        Check.that("the heap is used", peak(facts, 901, Contract.PEAK_JVMHEAPMEMORY) > MIB);
        Check.same("nothing is known of processes", -1, peak(facts, -1, Contract.PEAK_PROCESSTREEJVMRSSMEMORY));
        List<Facts.Fact> again = Facts.during(() -> MemoryPeaks.last(state));
        Check.same("what has not changed is not told again", -1, peak(again, 900, Contract.PEAK_ONHEAPEXECUTIONMEMORY));
        MemoryPeaks.again();
        again = Facts.during(() -> MemoryPeaks.last(state));
        Check.same("a daemon that starts later gets it", 30 * MIB, peak(again, 900, Contract.PEAK_ONHEAPEXECUTIONMEMORY));
    }

    @Test
    void theHeapBeforeACollectionIsSeen() {
        MemoryPeaks.began(902, 0);
        // Half of a small heap.
        byte[][] garbage = new byte[40][];
        for (int i = 0; i < garbage.length; i++) {
            garbage[i] = new byte[(int) MIB];
        }
        long held = Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
        garbage = null;
        System.gc();
        List<Facts.Fact> facts = Facts.during(() -> MemoryPeaks.last(state));
        MemoryPeaks.ended(902, 0);
        long peak = peak(facts, 902, Contract.PEAK_JVMHEAPMEMORY);
        Check.that("held " + held + ", told " + peak + " at most", peak >= 40 * MIB && peak >= held - MIB);
    }

    @Test
    void aCollectionIsOfTheStagesThatRanWhenItBegan() {
        long larger = 1L << 50;
        long before = System.nanoTime();
        MemoryPeaks.began(903, 0);
        MemoryPeaks.began(904, 0);
        long first = System.nanoTime();
        MemoryPeaks.ended(904, 0);
        MemoryPeaks.began(905, 0);
        MemoryPeaks.collected(first, larger);
        MemoryPeaks.ended(903, 0);
        long second = System.nanoTime();
        // Its tasks had a pause in which the next collection fell.
        MemoryPeaks.began(903, 0);
        MemoryPeaks.collected(second, 2 * larger);
        MemoryPeaks.collected(before, 4 * larger);
        List<Facts.Fact> facts = Facts.during(() -> MemoryPeaks.last(state));
        MemoryPeaks.ended(903, 0);
        MemoryPeaks.ended(905, 0);
        Check.same("a stage that ran on", larger, peak(facts, 903, Contract.PEAK_JVMHEAPMEMORY));
        Check.same("a stage that has ended since", larger, peak(facts, 904, Contract.PEAK_JVMHEAPMEMORY));
        Check.same("a stage that began between the two", 2 * larger, peak(facts, 905, Contract.PEAK_JVMHEAPMEMORY));
        Check.same("the executor", 4 * larger, peak(facts, -1, Contract.PEAK_JVMHEAPMEMORY));
        long age = (System.nanoTime() - before) / 1_000_000;
        long told = age(facts, -1, Contract.PEAK_JVMHEAPMEMORY);
        Check.that("it began " + told + " ms ago, not more than " + age, told <= age);
    }

    @Test
    void aStageThatBeginsAfterACollectionHasNotItsHeap() {
        // The looks find out when the JVM's own clock of collections began.
        for (int i = 0; i < 5; i++) {
            System.gc();
            Facts.during(() -> MemoryPeaks.last(state));
        }
        MemoryPeaks.began(906, 0);
        byte[][] garbage = new byte[40][];
        for (int i = 0; i < garbage.length; i++) {
            garbage[i] = new byte[(int) MIB];
        }
        garbage = null;
        System.gc();
        MemoryPeaks.began(907, 0);
        List<Facts.Fact> facts = Facts.during(() -> MemoryPeaks.last(state));
        MemoryPeaks.ended(906, 0);
        MemoryPeaks.ended(907, 0);
        long during = peak(facts, 906, Contract.PEAK_JVMHEAPMEMORY);
        long after = peak(facts, 907, Contract.PEAK_JVMHEAPMEMORY);
        Check.that("during " + during + ", after " + after, during >= 40 * MIB && after <= during - 20 * MIB);
    }

    @Test
    void figuresAreOfThisJvm() {
        MemoryFigures.again();
        Facts.Fact told = Facts.one(() -> MemoryFigures.tick(state));
        Check.that("entry " + told.entry, told.entry.equals("memoryTold"));
        Check.same("examined", Contract.MEMORY_EXAMINED, told.word("flags") & Contract.MEMORY_EXAMINED);
        long[] figures = new long[64];
        for (String pair : told.text("ranges").split(",")) {
            String[] parts = pair.split("\\+");
            figures[(int) Long.parseLong(parts[0], 16) & 0x3f] = Long.parseLong(parts[1]);
        }
        long used = figures[Contract.MEMORY_HEAP_USED];
        long resident = figures[Contract.MEMORY_HEAP_RESIDENT];
        Check.that("heap: used " + used + ", resident " + resident, used > 0 && resident > used / 2 && resident <= figures[Contract.MEMORY_HEAP_MAX]);
        Check.that("stacks and threads", figures[Contract.MEMORY_STACKS_RESIDENT] > 0 && figures[Contract.MEMORY_THREADS] > 3);
        Check.that("code cache", figures[Contract.MEMORY_CODE_RESIDENT] > 0);
        Check.that("anonymous memory", figures[Contract.MEMORY_ANONYMOUS] > resident);
    }
}
