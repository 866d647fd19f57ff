package io.smtt.marker;

import java.lang.reflect.Field;
import sun.misc.Unsafe;

/**
 * Raw memory at addresses, which must be aligned to the size of the value. Ordered stores only for words that others
 * read: plain ones may be moved or removed by the compiler.
 *
 * <p>Two forms. {@code sun.misc.Unsafe} on every JDK that permits it in silence. From JDK 24 on its memory methods warn
 * and will be refused later, so {@link ForeignMemory} takes its place there. The JIT folds the choice, because it is a
 * constant.
 */
final class Memory {
    /** The first JDK that warns when Unsafe accesses memory. */
    private static final int UNSAFE_WARNS = 24;
    private static final boolean FOREIGN = foreign();
    private static final Unsafe UNSAFE = FOREIGN ? null : unsafe();

    private Memory() {}

    /** The option {@code memory} selects a form, so that a benchmark compares both in one JVM. */
    private static boolean foreign() {
        String wanted = Options.get("memory");
        return wanted == null ? release() >= UNSAFE_WARNS : wanted.equals("foreign");
    }

    /** The JDK's feature release; 1 for Java 8, which calls itself 1.8. */
    static int release() {
        return Integer.parseInt(System.getProperty("java.specification.version").split("\\.")[0]);
    }

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    /** Whether this JVM uses the foreign memory API. */
    static boolean isForeign() {
        return FOREIGN;
    }

    /** New memory, all zero. From the native library, because only some JDKs have a way without a warning. */
    static long allocate(int bytes) {
        long address = Native.allocate(bytes);
        if (address == 0) {
            throw new OutOfMemoryError("no " + bytes + " bytes for the marker");
        }
        return address;
    }

    static void free(long address) {
        Native.free(address);
    }

    /** Fails where a word that is written is not read back: before any hook relies on it. */
    static void check() {
        long address = allocate(Long.BYTES);
        try {
            putLongOrdered(address, Long.MAX_VALUE);
            increment(address);
            if (getLong(address) != Long.MIN_VALUE) {
                throw new IllegalStateException("memory cannot be written");
            }
        } finally {
            free(address);
        }
    }

    static byte getByte(long address) {
        return FOREIGN ? ForeignMemory.getByte(address) : UNSAFE.getByte(address);
    }

    static void putByte(long address, byte value) {
        if (FOREIGN) {
            ForeignMemory.putByte(address, value);
        } else {
            UNSAFE.putByte(address, value);
        }
    }

    static int getInt(long address) {
        return FOREIGN ? ForeignMemory.getInt(address) : UNSAFE.getInt(address);
    }

    static void putInt(long address, int value) {
        if (FOREIGN) {
            ForeignMemory.putInt(address, value);
        } else {
            UNSAFE.putInt(address, value);
        }
    }

    static long getLong(long address) {
        return FOREIGN ? ForeignMemory.getLong(address) : UNSAFE.getLong(address);
    }

    static void putLong(long address, long value) {
        if (FOREIGN) {
            ForeignMemory.putLong(address, value);
        } else {
            UNSAFE.putLong(address, value);
        }
    }

    static long getLongVolatile(long address) {
        return FOREIGN ? ForeignMemory.getLongVolatile(address) : UNSAFE.getLongVolatile(null, address);
    }

    /** The ordered store: no earlier access moves behind it. */
    static void putLongOrdered(long address, long value) {
        if (FOREIGN) {
            ForeignMemory.putLongRelease(address, value);
        } else {
            UNSAFE.putOrderedLong(null, address, value);
        }
    }

    static void loadFence() {
        if (FOREIGN) {
            ForeignMemory.acquireFence();
        } else {
            UNSAFE.loadFence();
        }
    }

    static void storeFence() {
        if (FOREIGN) {
            ForeignMemory.releaseFence();
        } else {
            UNSAFE.storeFence();
        }
    }

    /** Adds one to a word that several threads count in. */
    static void increment(long address) {
        add(address, 1);
    }

    /** Adds to a word that several threads count in. */
    static void add(long address, long more) {
        if (FOREIGN) {
            ForeignMemory.add(address, more);
            return;
        }
        long seen;
        do {
            seen = UNSAFE.getLongVolatile(null, address);
        } while (!UNSAFE.compareAndSwapLong(null, address, seen, seen + more));
    }
}
