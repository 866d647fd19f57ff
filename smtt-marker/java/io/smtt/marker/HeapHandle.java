package io.smtt.marker;

/**
 * Something on the Java heap, followed through the collector's moves without keeping it alive. The owner's lock is held
 * for every call: a handle that was given back must not be read.
 */
final class HeapHandle {
    /** Distance of the address from the object's start; below zero where the address is the start of any object. */
    private final int elements;
    private long handle;

    private HeapHandle(Object object, int elements) {
        this.elements = elements;
        handle = Addresses.refused() ? 0 : Native.newHandle(object);
    }

    /** A primitive array: its address is that of its first element. */
    static HeapHandle ofArray(Object array) {
        return new HeapHandle(array, Memory.UNSAFE.arrayBaseOffset(array.getClass()));
    }

    /** Any object: its address is that of its header, which only a handle that may be read tells. */
    static HeapHandle ofObject(Object object) {
        return new HeapHandle(object, -1);
    }

    /** Address now; 0 where the object is gone, or where its address is not to be had. */
    long address() {
        if (handle == 0) {
            return 0;
        }
        if (elements >= 0) {
            return Addresses.at(handle, elements);
        }
        return Addresses.handlesAreRead() ? Addresses.read(handle, 0) : 0;
    }

    /** Whether there is a way to its address: for objects that are no primitive arrays the JVM has no answer of its own. */
    boolean canBeAsked() {
        return elements >= 0 || Addresses.handlesAreRead();
    }

    /** Whether reading the handle of an array and asking the JVM give the same. */
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
