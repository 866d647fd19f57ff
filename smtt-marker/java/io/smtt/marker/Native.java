package io.smtt.marker;

/** The native library: entry points that a probe may sit on, and four questions that Java cannot answer. */
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
            loaded = true;
        } catch (Throwable e) {
            Warnings.once("native library not loaded, nothing is traced in this JVM", e);
        }
        return loaded;
    }

    static boolean loaded() {
        return loaded;
    }

    // One per fact, see FactForm. Each takes the payload's address and length.
    static native void executorDescribed(long address, int length);

    static native void threadRegistered(long address, int length);

    static native void threadGone(long address, int length);

    static native void rddDescribed(long address, int length);

    static native void stageDescribed(long address, int length);

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

    /** Makes the slot file; its address, or a negative errno. */
    static native long createSlots(int slotCount);

    /** Address of the first element of a primitive array at this moment, or 0. */
    static native long arrayAddress(Object primitiveArray);

    /** Address of a direct buffer's first byte, or 0. */
    static native long bufferAddress(Object directBuffer);

    /** The calling thread's id in this JVM's pid namespace. */
    static native int threadId();
}
