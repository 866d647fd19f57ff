package io.smtt.marker;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Selects the objects to track in a block that is stored as objects. Such a block has no contiguous bytes: its elements
 * and the objects that they refer to lie wherever the collector put them. The placement of the block is estimated from
 * a few elements, evenly spread over the block. Only the element itself is examined, not the objects that it refers to.
 *
 * <p>Every handle costs the block's writer a fraction of a microsecond, and each collection a few nanoseconds, so there
 * is a bound per block and one for the whole executor. The nearer that is, the fewer a further block gets.
 */
final class Samples {
    /** Most elements of one block. */
    private static final int PER_BLOCK = 32;
    /** Most elements of all blocks together: a quarter of the ranges that the daemon keeps of an executor. */
    private static final int MOST = 8192;
    /** A block gets at most this part of what is left. */
    private static final int PART = 128;
    private static final Object[] NONE = new Object[0];

    private static final AtomicInteger ALIVE = new AtomicInteger();

    private Samples() {}

    /** Selects elements to track and reserves their handles; {@link #giveBack} releases the reservation. */
    static Object[] of(Object[] elements) {
        if (!Addresses.handlesAreRead() || elements.length == 0) {
            return NONE;
        }
        int count = reserve(Math.min(PER_BLOCK, elements.length));
        Object[] chosen = new Object[count];
        int found = 0;
        for (int i = 0; i < count; i++) {
            // The middle element of each of the equal parts.
            Object element = elements[(int) ((2L * i + 1) * elements.length / (2L * count))];
            if (element != null) {
                chosen[found++] = element;
            }
        }
        giveBack(count - found);
        return found == count ? chosen : Arrays.copyOf(chosen, found);
    }

    private static int reserve(int wanted) {
        while (true) {
            int alive = ALIVE.get();
            int count = Math.min(wanted, (MOST - alive + PART - 1) / PART);
            if (ALIVE.compareAndSet(alive, alive + count)) {
                return count;
            }
        }
    }

    static void giveBack(int count) {
        ALIVE.addAndGet(-count);
    }

    /** Size of each object in bytes by the JVM; objects of one class that are not arrays have equal sizes. */
    static long[] sizes(Object[] objects) {
        long[] sizes = new long[objects.length];
        for (int i = 0; i < objects.length; i++) {
            boolean same = i > 0 && objects[i].getClass() == objects[i - 1].getClass() && !objects[i].getClass().isArray();
            sizes[i] = same ? sizes[i - 1] : Native.objectSize(objects[i]);
        }
        return sizes;
    }
}
