package io.smtt.marker;

/**
 * Tracks an object on the Java heap through the collector's moves without keeping it alive. Every call needs the
 * owner's lock: a released handle must not be read.
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
        return new HeapHandle(array, ArrayLayout.elementsOffset(array.getClass()));
    }

    /** Any object: its address is that of its header, which is known only where handles can be read. */
    static HeapHandle ofObject(Object object) {
        return new HeapHandle(object, -1);
    }

    /** Current address; 0 where the object is gone, or where its address is unavailable. */
    long address() {
        if (handle == 0) {
            return 0;
        }
        if (elements >= 0) {
            return Addresses.at(handle, elements);
        }
        return Addresses.handlesAreRead() ? Addresses.read(handle, 0) : 0;
    }

    /** Whether its address is available: the JVM's own answer exists for primitive arrays only. */
    boolean canBeAsked() {
        return elements >= 0 || Addresses.handlesAreRead();
    }

    /** Whether the handle of an array and the JVM's own answer agree. */
    boolean agrees() {
        return handle == 0 || Addresses.read(handle, elements) == Native.handleAddress(handle);
    }

    /** Releases the handle. */
    void forget() {
        if (handle != 0) {
            Native.deleteHandle(handle);
            handle = 0;
        }
    }
}
