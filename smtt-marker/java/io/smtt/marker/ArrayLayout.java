package io.smtt.marker;

import java.lang.reflect.Array;

/** How this JVM lays out primitive arrays, without {@code sun.misc.Unsafe}. */
final class ArrayLayout {
    private static final Class<?>[] TYPES = {
        boolean.class, byte.class, char.class, short.class, int.class, float.class, long.class, double.class,
    };
    private static final int[] BYTES = {1, 1, 2, 2, 4, 4, 8, 8};
    /** Offsets that are known; 0 for the others. Threads that race find the same. */
    private static final int[] OFFSETS = new int[TYPES.length];
    /** The JVM aligns objects to at most this many bytes. */
    private static final int ALIGNMENT_MAX = 256;

    private ArrayLayout() {}

    /** Bytes of one element. */
    static int elementBytes(Class<?> array) {
        return BYTES[index(array)];
    }

    /**
     * Bytes between the start of an array object and its first element; 0 where the JVM's tool interface is
     * unavailable, and no handle is read.
     *
     * <p>An object's size is a multiple of the alignment. The longest array that has the size of the empty one has no
     * padding, so its size less its elements is the offset.
     */
    static int elementsOffset(Class<?> array) {
        int type = index(array);
        if (OFFSETS[type] == 0) {
            long size = size(type, 0);
            for (int length = 1; size != 0 && length <= ALIGNMENT_MAX; length++) {
                if (size(type, length) != size) {
                    OFFSETS[type] = (int) size - (length - 1) * BYTES[type];
                    break;
                }
            }
        }
        return OFFSETS[type];
    }

    private static long size(int type, int length) {
        return Native.objectSize(Array.newInstance(TYPES[type], length));
    }

    private static int index(Class<?> array) {
        Class<?> component = array.getComponentType();
        for (int i = 0; i < TYPES.length; i++) {
            if (TYPES[i] == component) {
                return i;
            }
        }
        throw new IllegalArgumentException(array + " is no primitive array");
    }
}
