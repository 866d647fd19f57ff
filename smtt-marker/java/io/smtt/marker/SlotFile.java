package io.smtt.marker;

/** The slot file of this JVM: header words, and which slots are free. */
final class SlotFile {
    private static volatile long header;
    private static final int[] FREE = new int[Contract.SLOT_COUNT];
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
        long address = Native.createSlots(Contract.SLOT_COUNT);
        if (address < 0 && address > -4096) {
            failed = true;
            Warnings.once("no slot file: errno " + -address, null);
            return false;
        }
        // Lowest slots first: their pages stay warm.
        for (int i = 0; i < Contract.SLOT_COUNT; i++) {
            FREE[i] = Contract.SLOT_COUNT - 1 - i;
        }
        freeCount = Contract.SLOT_COUNT;
        header = address;
        Addresses.start();
        Failures.start();
        return true;
    }

    /** Address of the header, or 0 before {@link #create}. */
    static long address() {
        return header;
    }

    /** Address of a free slot with the given owner, or 0 where none is left. */
    static synchronized long take(int tid) {
        if (freeCount == 0) {
            Memory.increment(header + Contract.HEADER_SLOTS_REFUSED);
            return 0;
        }
        long slot = header + Contract.HEADER_SIZE + (long) FREE[--freeCount] * Contract.SLOT_SIZE;
        Memory.putLongOrdered(slot + Contract.SLOT_HOT, 0);
        setTask(slot, null);
        Memory.putInt(slot + Contract.SLOT_TID, tid);
        Memory.putInt(slot + Contract.SLOT_GENERATION, Memory.getInt(slot + Contract.SLOT_GENERATION) + 1);
        Memory.putInt(slot + Contract.SLOT_STATE, Contract.SLOT_IN_USE);
        Memory.storeFence();
        return slot;
    }

    /** Frees a dead thread's slot. */
    static synchronized void give(long slot) {
        Memory.putLongOrdered(slot + Contract.SLOT_HOT, 0);
        Memory.putInt(slot + Contract.SLOT_STATE, Contract.SLOT_FREE);
        FREE[freeCount++] = (int) ((slot - header - Contract.HEADER_SIZE) / Contract.SLOT_SIZE);
    }

    /** Stores the cold words; the hot word must be 0 meanwhile. */
    static void setTask(long slot, Task task) {
        Memory.putLong(slot + Contract.SLOT_TASK_ATTEMPT_ID, task == null ? -1L : task.attemptId);
        Memory.putInt(slot + Contract.SLOT_STAGE_ID, task == null ? -1 : task.stageId);
        Memory.putInt(slot + Contract.SLOT_STAGE_ATTEMPT, task == null ? 0 : task.stageAttempt);
        Memory.putInt(slot + Contract.SLOT_PARTITION, task == null ? 0 : task.partition);
        Memory.putInt(slot + Contract.SLOT_ATTEMPT_NUMBER, task == null ? 0 : task.attemptNumber);
        Memory.putInt(slot + Contract.SLOT_JOB_ID, task == null ? -1 : task.jobId);
        Memory.storeFence();
    }

    /** Counts a fact of a thread without a slot. */
    static void countFactWithoutSlot() {
        Memory.increment(header + Contract.HEADER_FACTS_WITHOUT_SLOT);
    }

    /** Takes back such a count. */
    static void uncountFactWithoutSlot() {
        Memory.add(header + Contract.HEADER_FACTS_WITHOUT_SLOT, -1);
    }

    /** The daemon's request for a snapshot, or 0 where it was served. */
    static long resyncRequest() {
        long request = Memory.getLongVolatile(header + Contract.HEADER_RESYNC_REQUEST);
        return request == Memory.getLong(header + Contract.HEADER_RESYNC_DONE) ? 0 : request;
    }

    static void resyncDone(long request) {
        Memory.putLongOrdered(header + Contract.HEADER_RESYNC_DONE, request);
    }

    static void heapAddresses(long way) {
        Memory.putLongOrdered(header + Contract.HEADER_HEAP_ADDRESSES, way);
    }

    static long collectionsBegun() {
        return Memory.getLongVolatile(header + Contract.HEADER_COLLECTIONS_BEGUN);
    }

    /** When the last collection ended, as in {@link System#nanoTime}; 0 where the JVM's tool interface reports none. */
    static long collectionEnded() {
        return header == 0 ? 0 : Memory.getLongVolatile(header + Contract.HEADER_COLLECTION_ENDED_NS);
    }

    static long collectionsEnded() {
        return Memory.getLongVolatile(header + Contract.HEADER_COLLECTIONS_ENDED);
    }

    /** Stores the epoch of the addresses: every address was reported after that collection. */
    static void addressesTold(long collection) {
        Memory.putLongOrdered(header + Contract.HEADER_ADDRESSES_TOLD_NS, System.nanoTime());
        Memory.putLongOrdered(header + Contract.HEADER_ADDRESSES_EPOCH, collection);
    }
}
