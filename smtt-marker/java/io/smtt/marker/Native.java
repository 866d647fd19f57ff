package io.smtt.marker;

/** The native library: entry points, which may have probes, and functions that Java lacks. */
public final class Native {
    private static volatile boolean loaded;

    private Native() {}

    /** Loads the library once; false where there is none, with one warning. */
    static synchronized boolean load() {
        if (loaded) {
            return true;
        }
        try {
            System.load(LibraryFile.find().toString());
            Memory.check();
            loaded = true;
        } catch (Throwable e) {
            Warnings.once("native library not loaded, nothing is traced in this JVM", e);
        }
        return loaded;
    }

    static boolean loaded() {
        return loaded;
    }

    // One per fact; FactForm.call calls them. Each takes the payload's address and length.
    static native void executorDescribed(long address, int length);

    static native void threadRegistered(long address, int length);

    static native void threadGone(long address, int length);

    static native void rddDescribed(long address, int length);

    static native void stageDescribed(long address, int length);

    static native void jobDescribed(long address, int length);

    static native void taskStarted(long address, int length);

    static native void taskEnded(long address, int length);

    static native void blockStored(long address, int length);

    static native void blockRead(long address, int length);

    static native void blockMoved(long address, int length);

    static native void blockRemoved(long address, int length);

    static native void pageAllocated(long address, int length);

    static native void pageFreed(long address, int length);

    static native void consumerUsed(long address, int length);

    static native void span(long address, int length);

    static native void pythonWorker(long address, int length);

    static native void resyncDone(long address, int length);

    static native void addressesTold(long address, int length);

    static native void resyncTold(long address, int length);

    static native void taskBegun(long address, int length);

    static native void taskHeap(long address, int length);

    static native void taskHeapSoFar(long address, int length);

    static native void resourceExhausted(long address, int length);

    static native void memoryTold(long address, int length);

    static native void peaksTold(long address, int length);

    static native void taskMetrics(long address, int length);

    static native void helperBegun(long address, int length);

    static native void helperEnded(long address, int length);

    static native void shuffleFetched(long address, int length);

    static native void collectorPaused(long address, int length);

    /** Makes the slot file; its address, or a negative errno. */
    static native long createSlots(int slotCount);

    /** Counts collections in the slot file's header from now on; 0, or an error of the JVM. */
    static native int followCollections(long header);

    /** Reports from now on what the JVM runs out of; 0, or an error of the JVM. */
    static native int followExhaustion(long header);

    /**
     * Waits until the count of ended collections differs from {@code seen}, or until the timeout; returns the count.
     */
    static native int waitForCollection(int seen, int milliseconds);

    /** Pauses of the collector that have ended since {@link #followCollections}. */
    static native int pauses();

    /**
     * Begin or end of a pause, as in {@link System#nanoTime}; 0 where it is not known any more.
     */
    static native long pause(int number, boolean end);

    /** A weak handle of an object, or 0. Its lowest three bits are its kind; the rest is the address of its word. */
    static native long newHandle(Object object);

    /** Releases a handle. */
    static native void deleteHandle(long handle);

    /** Address of the first element of the primitive array behind a handle at this moment, or 0. */
    static native long handleAddress(long handle);

    /** Size of an object in bytes by the JVM; 0 where its tool interface is unavailable. */
    static native long objectSize(Object object);

    /** Address of a direct buffer's first byte, or 0. */
    static native long bufferAddress(Object directBuffer);

    /** Address of new memory, all zero, or 0 where there is none. */
    static native long allocate(int bytes);

    /** Frees memory of {@link #allocate}. */
    static native void free(long address);

    /**
     * Counts the resident pages of the heap, of the code cache and of the stacks of all threads, and reads the anonymous
     * resident memory. Writes {@code EXAMINED_WORDS} words of bytes to {@code result}, -1 where unknown; the last one is
     * the CPU time in nanoseconds.
     */
    static native void examineMemory(long result);

    /** Resident bytes of an address range, or -1 where a part of it is not mapped. */
    static native long residentBytes(long address, long length);

    /** Anonymous resident memory of this process, or -1. */
    static native long anonymousBytes();

    /**
     * Publishes a process context of OTEP 4719: in a new mapping where {@code header} is 0, else in place of the one before;
     * the header's address, or a negative errno.
     */
    static native long publish(long header, long payload, int length);

    /** The calling thread's id in this JVM's pid namespace. */
    static native int threadId();
}
