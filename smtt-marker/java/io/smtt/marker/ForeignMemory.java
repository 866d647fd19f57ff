package io.smtt.marker;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;

/**
 * Raw memory through the foreign memory API (JDK 22): one segment that covers all addresses, and its access methods as
 * constant method handles, which the JIT inlines. The API is reached by reflection, because this class is compiled for
 * Java 8.
 *
 * <p>Making that segment needs native access, as loading the native library does, so it asks for no further permission.
 * Direct buffers would need none, but a store to one took four times as long.
 */
final class ForeignMemory {
    /** Addresses of a process have at most 56 bits on every processor that Spark runs on. */
    private static final long ANY = (1L << 56) - 1;
    // An address that is masked like this is in the segment and aligned, so the JIT removes both checks. It changes no
    // address: those of long and int values are aligned.
    private static final long INTS = ANY & -4L;
    private static final long LONGS = ANY & -8L;

    private static final Object MEMORY;
    private static final MethodHandle GET_BYTE;
    private static final MethodHandle PUT_BYTE;
    private static final MethodHandle GET_INT;
    private static final MethodHandle PUT_INT;
    private static final MethodHandle GET_LONG;
    private static final MethodHandle PUT_LONG;
    private static final MethodHandle GET_LONG_VOLATILE;
    private static final MethodHandle PUT_LONG_RELEASE;
    private static final MethodHandle ADD_LONG;
    private static final MethodHandle ACQUIRE_FENCE;
    private static final MethodHandle RELEASE_FENCE;

    static {
        try {
            Class<?> segment = Class.forName("java.lang.foreign.MemorySegment");
            MEMORY = segment.getMethod("reinterpret", long.class).invoke(segment.getField("NULL").get(null), Long.MAX_VALUE);
            GET_BYTE = access("JAVA_BYTE", "get");
            PUT_BYTE = access("JAVA_BYTE", "set");
            GET_INT = access("JAVA_INT", "get");
            PUT_INT = access("JAVA_INT", "set");
            GET_LONG = access("JAVA_LONG", "get");
            PUT_LONG = access("JAVA_LONG", "set");
            GET_LONG_VOLATILE = access("JAVA_LONG", "getVolatile");
            PUT_LONG_RELEASE = access("JAVA_LONG", "setRelease");
            ADD_LONG = access("JAVA_LONG", "getAndAdd");
            ACQUIRE_FENCE = fence("acquireFence");
            RELEASE_FENCE = fence("releaseFence");
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private ForeignMemory() {}

    /** One way to access values of a layout: a method handle of the address, and of the value where there is one. */
    private static MethodHandle access(String layout, String mode) throws ReflectiveOperationException {
        Class<?> layouts = Class.forName("java.lang.foreign.ValueLayout");
        Class<?> modes = Class.forName("java.lang.invoke.VarHandle$AccessMode");
        Object handle = layouts.getMethod("varHandle").invoke(layouts.getField(layout).get(null));
        Method method = Class.forName("java.lang.invoke.VarHandle").getMethod("toMethodHandle", modes);
        Object chosen = modes.getMethod("valueFromMethodName", String.class).invoke(null, mode);
        return ((MethodHandle) method.invoke(handle, chosen)).bindTo(MEMORY);
    }

    private static MethodHandle fence(String name) throws ReflectiveOperationException {
        return MethodHandles.publicLookup().findStatic(Class.forName("java.lang.invoke.VarHandle"), name, MethodType.methodType(void.class));
    }

    /** No handle throws: what arrives here is an error of the JVM, for example an exhausted stack. */
    private static RuntimeException failed(Throwable e) {
        if (e instanceof Error) {
            throw (Error) e;
        }
        return new IllegalStateException(e);
    }

    static byte getByte(long address) {
        try {
            return (byte) GET_BYTE.invokeExact(address & ANY);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void putByte(long address, byte value) {
        try {
            PUT_BYTE.invokeExact(address & ANY, value);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static int getInt(long address) {
        try {
            return (int) GET_INT.invokeExact(address & INTS);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void putInt(long address, int value) {
        try {
            PUT_INT.invokeExact(address & INTS, value);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static long getLong(long address) {
        try {
            return (long) GET_LONG.invokeExact(address & LONGS);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void putLong(long address, long value) {
        try {
            PUT_LONG.invokeExact(address & LONGS, value);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static long getLongVolatile(long address) {
        try {
            return (long) GET_LONG_VOLATILE.invokeExact(address & LONGS);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void putLongRelease(long address, long value) {
        try {
            PUT_LONG_RELEASE.invokeExact(address & LONGS, value);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void add(long address, long more) {
        try {
            long before = (long) ADD_LONG.invokeExact(address & LONGS, more);
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void acquireFence() {
        try {
            ACQUIRE_FENCE.invokeExact();
        } catch (Throwable e) {
            throw failed(e);
        }
    }

    static void releaseFence() {
        try {
            RELEASE_FENCE.invokeExact();
        } catch (Throwable e) {
            throw failed(e);
        }
    }
}
