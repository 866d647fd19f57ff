package io.smtt.marker;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

final class ArrayLayoutTest {
    private final ThreadState teller = Facts.teller();

    /** Reads the first word at the address that the handle gives after a collection. */
    private static void found(Object array, long word) {
        HeapHandle handle = HeapHandle.ofArray(array);
        System.gc();
        long address = handle.address();
        ByteBuffer first = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.nativeOrder());
        for (int i = 0; i < Long.BYTES; i++) {
            // Byte by byte: elements need not begin at a multiple of eight.
            first.put(i, Memory.getByte(address + i));
        }
        Check.same("first word of " + array.getClass().getSimpleName(), word, first.getLong(0));
        handle.forget();
    }

    @Test
    void elementsAreAtTheirOffsets() {
        Check.that("handles are read", Addresses.handlesAreRead());
        byte[] bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9};
        long word = ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).getLong();
        found(bytes, word);
        found(new long[] {word, -1}, word);
        found(new double[] {Double.longBitsToDouble(42), -1}, 42);
        found(new boolean[] {true, true, true, true, true, true, true, true, false}, 0x0101_0101_0101_0101L);
        found(new char[] {7, 7, 7, 7, 8}, 0x0007_0007_0007_0007L);
        found(new short[] {7, 7, 7, 7, 8}, 0x0007_0007_0007_0007L);
        found(new int[] {7, 7, 8}, 0x0000_0007_0000_0007L);
        found(new float[] {Float.intBitsToFloat(7), Float.intBitsToFloat(7), 8}, 0x0000_0007_0000_0007L);
    }

    @Test
    void onlyPrimitiveArraysHaveALayout() {
        Check.refused("an array of objects", () -> ArrayLayout.elementsOffset(Object[].class));
        Check.refused("no array", () -> ArrayLayout.elementBytes(String.class));
        Check.same("bytes of a double", 8, ArrayLayout.elementBytes(double[].class));
        Check.same("bytes of a char", 2, ArrayLayout.elementBytes(char[].class));
    }
}
