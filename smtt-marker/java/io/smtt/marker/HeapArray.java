package io.smtt.marker;

/**
 * An array on the Java heap, followed through the collector's moves without keeping it alive. The owner's lock is held
 * for every call: a handle that was given back must not be read.
 */
final class HeapArray {
    private final int elements;
    private long handle;

    HeapArray(Object array) {
        elements = Memory.UNSAFE.arrayBaseOffset(array.getClass());
        handle = Addresses.refused() ? 0 : Native.newHandle(array);
    }

    /** Address of the first element now; 0 where the array is gone, or where its address is not to be had. */
    long address() {
        return handle == 0 ? 0 : Addresses.at(handle, elements);
    }

    /** Whether reading the handle and asking the JVM give the same. */
    boolean agrees() {
        return handle == 0 || Addresses.read(handle, elements) == Native.handleAddress(handle);
    }

    /** Gives the handle back. */
    void forget() {
        if (handle != 0) {
            Native.deleteHandle(handle);
            handle = 0;
        }
    }
}
