package io.smtt.marker;

import java.lang.reflect.Field;
import sun.misc.Unsafe;

/** Raw memory. Ordered stores only for words that others read: plain ones may be moved or removed by the compiler. */
final class Memory {
    private Memory() {}

    static final Unsafe UNSAFE = unsafe();
    /** Bytes between the start of a {@code long[]} object and its first element. */
    static final long LONG_ARRAY_OFFSET = UNSAFE.arrayBaseOffset(long[].class);

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    /** Adds one to a word that several threads count in. */
    static void increment(long address) {
        long seen;
        do {
            seen = UNSAFE.getLongVolatile(null, address);
        } while (!UNSAFE.compareAndSwapLong(null, address, seen, seen + 1));
    }
}
