package io.smtt.marker;

import sun.misc.Unsafe;

/** The slot file of this JVM: header words, and which slots are free. Layout: {@code smtt_common::context}. */
final class SlotFile {
    static final int SLOT_COUNT = 4096;
    static final int SLOT_BYTES = 128;

    static final int HOT = 0;
    static final int TASK_ATTEMPT_ID = 8;
    static final int STAGE_ID = 16;
    static final int STAGE_ATTEMPT = 20;
    static final int PARTITION = 24;
    static final int ATTEMPT_NUMBER = 28;
    static final int TID = 32;
    static final int GENERATION = 36;
    static final int JOB_ID = 40;
    static final int STATE = 44;
    static final int FACTS = 48;

    private static final int HEADER_BYTES = 4096;
    private static final int RESYNC_REQUEST = 24;
    private static final int RESYNC_DONE = 32;
    private static final int SLOTS_REFUSED = 40;
    private static final int FACTS_WITHOUT_SLOT = 48;
    private static final int HEAP_ADDRESSES = 64;
    private static final int COLLECTIONS_BEGUN = 72;
    private static final int COLLECTIONS_ENDED = 80;
    private static final int ADDRESSES_EPOCH = 88;
    private static final int ADDRESSES_TOLD_NS = 104;
    private static final Unsafe U = Memory.UNSAFE;

    private static volatile long header;
    private static final int[] FREE = new int[SLOT_COUNT];
    private static int freeCount;
    private static boolean failed;

    private SlotFile() {}

    /** Makes the file once; false where it cannot be made, with one warning. */
    static synchronized boolean create() {
        if (header != 0) {
            return true;
        }
        if (failed || !Native.loaded()) {
            return false;
        }
        long address = Native.createSlots(SLOT_COUNT);
        if (address < 0 && address > -4096) {
            failed = true;
            Warnings.once("no slot file: errno " + -address, null);
            return false;
        }
        // Lowest slots first: their pages stay warm.
        for (int i = 0; i < SLOT_COUNT; i++) {
            FREE[i] = SLOT_COUNT - 1 - i;
        }
        freeCount = SLOT_COUNT;
        header = address;
        Addresses.start();
        return true;
    }

    /** Address of the header, or 0 before {@link #create}. */
    static long address() {
        return header;
    }

    /** Address of a free slot with the given owner, or 0 where none is left. */
    static synchronized long take(int tid) {
        if (freeCount == 0) {
            Memory.increment(header + SLOTS_REFUSED);
            return 0;
        }
        long slot = header + HEADER_BYTES + (long) FREE[--freeCount] * SLOT_BYTES;
        U.putOrderedLong(null, slot + HOT, 0);
        setTask(slot, null);
        U.putInt(slot + TID, tid);
        U.putInt(slot + GENERATION, U.getInt(slot + GENERATION) + 1);
        U.putInt(slot + STATE, 1);
        U.storeFence();
        return slot;
    }

    /** Gives a dead thread's slot back. */
    static synchronized void give(long slot) {
        U.putOrderedLong(null, slot + HOT, 0);
        U.putInt(slot + STATE, 0);
        FREE[freeCount++] = (int) ((slot - header - HEADER_BYTES) / SLOT_BYTES);
    }

    /** Stores the cold words; the hot word must be 0 meanwhile. */
    static void setTask(long slot, Task task) {
        U.putLong(slot + TASK_ATTEMPT_ID, task == null ? -1L : task.attemptId);
        U.putInt(slot + STAGE_ID, task == null ? -1 : task.stageId);
        U.putInt(slot + STAGE_ATTEMPT, task == null ? 0 : task.stageAttempt);
        U.putInt(slot + PARTITION, task == null ? 0 : task.partition);
        U.putInt(slot + ATTEMPT_NUMBER, task == null ? 0 : task.attemptNumber);
        U.putInt(slot + JOB_ID, task == null ? -1 : task.jobId);
        U.storeFence();
    }

    /** Counts a fact of a thread without a slot. */
    static void countFactWithoutSlot() {
        Memory.increment(header + FACTS_WITHOUT_SLOT);
    }

    /** The daemon's request to tell everything again, or 0 where it was served. */
    static long resyncRequest() {
        long request = U.getLongVolatile(null, header + RESYNC_REQUEST);
        return request == U.getLong(header + RESYNC_DONE) ? 0 : request;
    }

    static void resyncDone(long request) {
        U.putOrderedLong(null, header + RESYNC_DONE, request);
    }

    static void heapAddresses(long way) {
        U.putOrderedLong(null, header + HEAP_ADDRESSES, way);
    }

    static long collectionsBegun() {
        return U.getLongVolatile(null, header + COLLECTIONS_BEGUN);
    }

    static long collectionsEnded() {
        return U.getLongVolatile(null, header + COLLECTIONS_ENDED);
    }

    /** After that collection every address on the heap has been told. */
    static void addressesTold(long collection) {
        U.putOrderedLong(null, header + ADDRESSES_TOLD_NS, System.nanoTime());
        U.putOrderedLong(null, header + ADDRESSES_EPOCH, collection);
    }
}
