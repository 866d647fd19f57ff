package io.smtt.marker;

import java.util.List;
import org.apache.spark.unsafe.memory.MemoryBlock;

final class TaskMemoryTest {
    private static final class Sorter {}

    private static final class Table {}

    private final ThreadState state = Facts.teller();
    private final Task task = new Task(21, 4, 0, 6, 0, 2, Thread.currentThread());
    private Object manager = new Object();
    private final TaskMemory memory = new TaskMemory(manager, task);
    private final Object sorter = new Sorter();

    private static MemoryBlock page(int number, long address, long bytes) {
        MemoryBlock page = new MemoryBlock(null, address, bytes);
        page.pageNumber = number;
        return page;
    }

    private static long sum(List<Facts.Fact> facts, String entry) {
        long sum = 0;
        for (Facts.Fact fact : facts) {
            sum += fact.entry.equals(entry) ? fact.word("size_bytes") : 0;
        }
        return sum;
    }

    @Test
    void aPageIsToldWithItsOwner() {
        state.hot(Words.tag(Contract.ACTIVITY_SORT, Contract.ACCESS_WRITE, Contract.REGION_EXECUTION) | Words.rdd(8, 6));
        try {
            Facts.Fact told = Facts.one(() -> memory.add(page(3, 0x7000, 4096), sorter, state));
            Check.same("entry", "pageAllocated", told.entry);
            Check.same("task", 21, told.word("task_attempt_id"));
            Check.same("page", 3, told.word("page_number"));
            Check.same("address", 0x7000, told.word("address"));
            Check.same("bytes", 4096, told.word("size_bytes"));
            Check.same("activity", Contract.ACTIVITY_SORT, told.word("flags") >>> Contract.PAGE_ACTIVITY_SHIFT);
            Check.same("off heap", 0, told.word("flags") & Contract.PAGE_ON_HEAP);
            Check.same("RDD", 8, told.word("rdd_id"));
            Check.same("stage", 4, told.word("stage_id"));
            Check.same("consumer", "TaskMemoryTest$Sorter", told.text("consumer"));
        } finally {
            state.hot(0);
        }
    }

    @Test
    void thePeakIsTheMostThatWasHeldAtOnce() {
        memory.add(page(0, 0x1000, 100), sorter, state);
        memory.grant(sorter, 50, state);
        memory.free(page(0, 0x1000, 100), state);
        memory.add(page(1, 0x2000, 70), sorter, state);
        Check.same("peak", 150, memory.peakBytes());
        memory.grant(new Table(), 40, state);
        Check.same("a new peak", 160, memory.peakBytes());
        memory.release(sorter, 50, state);
        memory.grant(sorter, 30, state);
        Check.same("below it", 160, memory.peakBytes());
    }

    @Test
    void aPageThatIsReturnedTwiceIsOnePage() {
        MemoryBlock page = page(0, 0x1000, 100);
        Check.same("facts", 1, Facts.during(() -> memory.add(page, sorter, state)).size());
        Check.same("facts of the second return", 0, Facts.during(() -> memory.add(page, sorter, state)).size());
        Check.same("peak", 100, memory.peakBytes());
    }

    @Test
    void aNumberThatIsUsedAgainFreesThePageBefore() {
        memory.add(page(0, 0x1000, 100), sorter, state);
        List<Facts.Fact> told = Facts.during(() -> memory.add(page(0, 0x2000, 60), sorter, state));
        Check.same("freed", 100, sum(told, "pageFreed"));
        Check.same("allocated", 60, sum(told, "pageAllocated"));
        Check.same("peak: never both", 100, memory.peakBytes());
    }

    @Test
    void aPageThatWasNotSeenIsNotFreed() {
        Check.same("facts", 0, Facts.during(() -> memory.free(page(5, 0x1000, 100), state)).size());
    }

    @Test
    void grantsHaveNoPage() {
        Facts.Fact told = Facts.one(() -> memory.grant(sorter, 64, state));
        Check.same("page", -1, told.word("page_number"));
        Check.same("address", Contract.NO_ADDRESS, told.word("address"));
        Check.same("bytes", 64, told.word("size_bytes"));
    }

    @Test
    void noMoreIsReleasedThanWasGranted() {
        memory.grant(sorter, 64, state);
        Check.same("a part", 24, Facts.one(() -> memory.release(sorter, 24, state)).word("size_bytes"));
        Check.same("the rest", 40, Facts.one(() -> memory.release(sorter, 1000, state)).word("size_bytes"));
        Check.same("facts when nothing is left", 0, Facts.during(() -> memory.release(sorter, 1, state)).size());
        Check.same("facts of a class without a grant", 0, Facts.during(() -> memory.release(new Table(), 1, state)).size());
        memory.grant(sorter, 10, state);
        Check.same("peak", 64, memory.peakBytes());
    }

    @Test
    void whatIsLeftAtTheEndIsGivenBack() {
        List<Facts.Fact> before = Facts.during(() -> {
            memory.add(page(0, 0x1000, 100), sorter, state);
            memory.add(page(1, 0x2000, 200), sorter, state);
            memory.grant(sorter, 30, state);
            memory.grant(new Table(), 7, state);
            memory.free(page(0, 0x1000, 100), state);
        });
        List<Facts.Fact> end = Facts.during(() -> memory.clean(state));
        Check.same("freed in all", sum(before, "pageAllocated"), sum(before, "pageFreed") + sum(end, "pageFreed"));
        Check.same("facts of a second end", 0, Facts.during(() -> memory.clean(state)).size());
        memory.grant(sorter, 10, state);
        Check.same("peak", 337, memory.peakBytes());
    }

    @Test
    void aResyncTellsPagesAndSumsOfGrants() {
        memory.add(page(2, 0x1000, 100), sorter, state);
        memory.grant(sorter, 30, state);
        memory.grant(sorter, 12, state);
        List<Facts.Fact> told = Facts.during(() -> memory.tellAgain(state));
        Check.same("facts", 2, told.size());
        for (Facts.Fact fact : told) {
            Check.same("flags", Contract.REPORTED_AGAIN, fact.word("flags"));
            boolean grant = fact.word("page_number") == -1;
            Check.same("bytes", grant ? 42 : 100, fact.word("size_bytes"));
        }
        Check.same("peak", 142, memory.peakBytes());
    }

    @Test
    void managersWithoutATaskHaveNumbersOfTheirOwn() {
        TaskMemory first = new TaskMemory(manager, null);
        TaskMemory second = new TaskMemory(manager, null);
        Facts.Fact one = Facts.one(() -> first.add(page(0, 0x1000, 1), sorter, state));
        Facts.Fact other = Facts.one(() -> second.add(page(0, 0x2000, 1), sorter, state));
        Check.same("task", -1, one.word("task_attempt_id"));
        Check.that("page numbers differ", one.word("page_number") != other.word("page_number"));
    }

    @Test
    void sparksOffsetOfAnArrayIsTheJvms() {
        Check.same("offset", TaskMemory.SparksLayout.LONG_ARRAY_OFFSET, ArrayLayout.elementsOffset(long[].class));
    }

    @Test
    void aPageOnTheHeapIsFollowed() {
        long[] array = new long[64];
        array[2] = 0x1234_5678_9abc_def0L;
        MemoryBlock block = new MemoryBlock(array, TaskMemory.SparksLayout.LONG_ARRAY_OFFSET + 16, 496);
        block.pageNumber = 1;
        Facts.Fact told = Facts.one(() -> memory.add(block, sorter, state));
        Check.same("on heap", Contract.PAGE_ON_HEAP, told.word("flags") & Contract.PAGE_ON_HEAP);
        Check.same("word at the address", array[2], Memory.getLong(told.word("address")));
        // A full collection takes it out of the young generation.
        System.gc();
        Facts.Fact moved = Facts.one(() -> memory.tellMoved(state));
        Check.that("it moved", moved.word("address") != told.word("address"));
        Check.same("flags", Contract.PAGE_ON_HEAP | Contract.REPORTED_AGAIN, moved.word("flags"));
        Check.same("word at the new address", array[2], Memory.getLong(moved.word("address")));
        Check.same("facts without a move", 0, Facts.during(() -> memory.tellMoved(state)).size());
        memory.free(block, state);
        Check.same("facts of a page that is gone", 0, Facts.during(() -> memory.tellMoved(state)).size());
    }

    @Test
    void whatAManagerHeldThatIsGoneIsFreed() throws InterruptedException {
        Facts.during(() -> memory.grant(sorter, 7777, state));
        manager = null;
        boolean freed = false;
        // Managers of other tests go as well, in any order.
        for (int i = 0; i < 500 && !freed; i++) {
            System.gc();
            Thread.sleep(10);
            for (Facts.Fact fact : Facts.during(() -> TaskMemory.reap(state))) {
                freed |= fact.entry.equals("pageFreed") && fact.word("size_bytes") == 7777;
            }
        }
        Check.that("what it held is freed", freed);
        Check.same("facts of a second time", 0, Facts.during(() -> memory.clean(state)).size());
    }
}
