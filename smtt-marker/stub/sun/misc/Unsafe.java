package sun.misc;

/**
 * Compile-time stand-in: {@code javac --release 8} hides the real class, which every JDK from 8 on has in module
 * {@code jdk.unsupported}. Never put into the jar.
 */
public final class Unsafe {
    private Unsafe() {}

    public native int arrayBaseOffset(Class<?> type);

    public native byte getByte(long address);

    public native void putByte(long address, byte value);

    public native int getInt(long address);

    public native void putInt(long address, int value);

    public native long getLong(long address);

    public native void putLong(long address, long value);

    public native long getLongVolatile(Object base, long offset);

    public native void putOrderedLong(Object base, long offset, long value);

    public native boolean compareAndSwapLong(Object base, long offset, long expected, long value);

    public native void loadFence();

    public native void storeFence();
}
