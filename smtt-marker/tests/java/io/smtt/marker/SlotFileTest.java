package io.smtt.marker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

final class SlotFileTest {
    private static int word(long slot, int offset) {
        return Memory.getInt(slot + offset);
    }

    private static long header(int offset) {
        return Memory.getLong(SlotFile.address() + offset);
    }

    public SlotFileTest() {
        Facts.teller();
    }

    @Test
    void theHeaderIsThatOfTheContract() {
        Check.same("magic", 0x544f_4c53_5454_4d53L, header(Contract.HEADER_MAGIC));
        Check.same("size of a slot", Contract.SLOT_SIZE, word(SlotFile.address(), Contract.HEADER_SLOT_SIZE));
        Check.same("slots", Contract.SLOT_COUNT, word(SlotFile.address(), Contract.HEADER_SLOT_COUNT));
        Check.same("address", SlotFile.address(), header(Contract.HEADER_ADDRESS));
        Check.same("addresses on the heap", Addresses.way(), header(Contract.HEADER_HEAP_ADDRESSES));
    }

    @Test
    void aSlotIsTakenAndGivenBack() {
        long slot = SlotFile.take(77);
        int generation = word(slot, Contract.SLOT_GENERATION);
        Check.same("tid", 77, word(slot, Contract.SLOT_TID));
        Check.same("state", Contract.SLOT_IN_USE, word(slot, Contract.SLOT_STATE));
        Check.same("no task", -1, Memory.getLong(slot + Contract.SLOT_TASK_ATTEMPT_ID));
        Check.same("no stage", -1, word(slot, Contract.SLOT_STAGE_ID));
        SlotFile.give(slot);
        Check.same("state after", Contract.SLOT_FREE, word(slot, Contract.SLOT_STATE));
        Check.same("the slot that is warm comes first", slot, SlotFile.take(78));
        Check.same("generation", generation + 1, word(slot, Contract.SLOT_GENERATION));
        SlotFile.give(slot);
    }

    @Test
    void coldWordsAreTheTasks() {
        long slot = SlotFile.take(77);
        SlotFile.setTask(slot, new Task(1L << 40, 2, 3, 4, 5, 6, Thread.currentThread()));
        Check.same("task", 1L << 40, Memory.getLong(slot + 8));
        int[] expected = {2, 3, 4, 5};
        for (int i = 0; i < expected.length; i++) {
            Check.same("word at " + (16 + 4 * i), expected[i], word(slot, 16 + 4 * i));
        }
        Check.same("job", 6, word(slot, 40));
        SlotFile.give(slot);
    }

    @Test
    void threadsBeyondTheSlotsAreCounted() {
        long refused = header(Contract.HEADER_SLOTS_REFUSED);
        List<Long> taken = new ArrayList<>();
        for (long slot = SlotFile.take(1); slot != 0; slot = SlotFile.take(1)) {
            taken.add(slot);
        }
        Check.same("refused", refused + 1, header(Contract.HEADER_SLOTS_REFUSED));
        Check.that("slots: " + taken.size(), taken.size() > Contract.SLOT_COUNT - 100 && taken.size() <= Contract.SLOT_COUNT);
        for (int i = taken.size() - 1; i >= 0; i--) {
            SlotFile.give(taken.get(i));
        }
        long again = SlotFile.take(1);
        Check.that("a slot that was given back is free", again != 0);
        SlotFile.give(again);
    }

    @Test
    void aThreadCountsItsFactsInItsSlot() throws InterruptedException {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long[] slot = new long[1];
        Thread thread = new Thread(() -> {
            try {
                ThreadState state = ThreadState.current();
                long without = header(Contract.HEADER_FACTS_WITHOUT_SLOT);
                state.facts.begin(FactForm.RESYNC_DONE).word(Contract.RESYNC_DONE_REQUEST, 1).tell();
                Check.same("counted in the header", without + 1, header(Contract.HEADER_FACTS_WITHOUT_SLOT));
                Facts.Fact told = Facts.one(state::register);
                slot[0] = state.slot;
                Check.same("entry", "threadRegistered", told.entry);
                Check.same("address", slot[0], told.word("slot_address"));
                Check.same("tid", Native.threadId(), told.word("tid"));
                Check.same("name", "a thread of a test", told.text("thread_name"));
                long counted = Memory.getLong(slot[0] + Contract.SLOT_FACTS_EMITTED);
                state.facts.begin(FactForm.RESYNC_DONE).word(Contract.RESYNC_DONE_REQUEST, 1).tell();
                Check.same("counted in the slot", counted + 1, Memory.getLong(slot[0] + Contract.SLOT_FACTS_EMITTED));
                state.hot(Words.COMPUTE_TAG);
                Check.same("hot word in the slot", Words.COMPUTE_TAG, Memory.getLong(slot[0]));
            } catch (Throwable e) {
                failure.set(e);
            }
        }, "a thread of a test");
        thread.start();
        thread.join();
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
        Facts.Fact gone = Facts.one(ThreadState::sweep);
        Check.same("entry", "threadGone", gone.entry);
        Check.same("address", slot[0], gone.word("slot_address"));
        Check.same("state", Contract.SLOT_FREE, word(slot[0], Contract.SLOT_STATE));
        Check.same("hot word", 0, Memory.getLong(slot[0]));
    }
}
