package io.smtt.marker;

import java.util.List;
import java.util.concurrent.FutureTask;

final class AccountsTest {
    private static final int MIB = 1 << 20;

    private static volatile byte[] last;

    @Test
    void aTaskSaysWhatItsThreadAllocated() {
        ThreadState state = Facts.teller();
        Facts.Fact begun = Facts.one(() -> state.accounts.begin(state, 71, false));
        Check.same("fact", "taskBegun", begun.entry);
        Check.same("flags", 0, begun.word("flags"));
        for (int i = 0; i < 64; i++) {
            last = new byte[MIB];
        }
        Facts.Fact heap = Facts.one(() -> state.accounts.end(state, 71));
        Check.same("fact", "taskHeap", heap.entry);
        Check.same("task", 71, heap.word("task_attempt_id"));
        long bytes = heap.word("allocated_bytes");
        Check.that("64 MiB within 1 %: " + bytes, bytes >= 64L * MIB && bytes <= 64L * MIB * 101 / 100);
        Check.that("collections: " + heap.line, heap.word("collection_ms") >= 0);
    }

    @Test
    void aTaskThatWasNotBegunHasNoHeap() {
        ThreadState state = Facts.teller();
        Facts.Fact late = Facts.one(() -> state.accounts.begin(state, 72, true));
        Check.same("flags", Contract.BEGUN_LATE, late.word("flags"));
        Check.same("facts of the same begin, and of another task's end", 0, told(() -> {
            state.accounts.begin(state, 72, true);
            state.accounts.end(state, 73);
        }));
        Check.same("facts of the end", 1, told(() -> state.accounts.end(state, 72)));
        Check.same("facts of the end again", 0, told(() -> state.accounts.end(state, 72)));
    }

    @Test
    void aRunningTaskSaysWhatItHasAllocatedSoFar() throws Exception {
        ThreadState teller = Facts.teller();
        long[] told = new long[2];
        FutureTask<Void> work = new FutureTask<>(() -> {
            ThreadState state = ThreadState.current();
            state.accounts.begin(state, 74, false);
            Check.same("facts at the first look", 0, told(() -> state.accounts.tellRunning(teller, state.thread)));
            for (int look = 0; look < told.length; look++) {
                for (int i = 0; i < 16; i++) {
                    last = new byte[MIB];
                }
                Facts.Fact soFar = Facts.one(() -> state.accounts.tellRunning(teller, state.thread));
                Check.same("fact", "taskHeapSoFar", soFar.entry);
                Check.same("task", 74, soFar.word("task_attempt_id"));
                told[look] = soFar.word("allocated_bytes");
            }
            state.accounts.end(state, 74);
            Check.same("facts of an ended task", 0, told(() -> state.accounts.tellRunning(teller, state.thread)));
            return null;
        });
        new Thread(work).start();
        work.get();
        for (int look = 0; look < told.length; look++) {
            long truth = 16L * MIB * (look + 1);
            Check.that(truth + " bytes within 2 %: " + told[look], told[look] >= truth && told[look] <= truth * 102 / 100);
        }
    }

    private static long told(Runnable work) {
        List<Facts.Fact> facts = Facts.during(work);
        return facts.size();
    }
}
