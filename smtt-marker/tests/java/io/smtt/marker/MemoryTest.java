package io.smtt.marker;

final class MemoryTest {
    private static final int BYTES = 64;
    private static final int THREADS = 4;
    private static final int TIMES = 20_000;

    private final ThreadState teller = Facts.teller();
    private final long memory = Memory.allocate(BYTES);

    @Test
    void theFormIsThatOfTheJdk() {
        boolean warns = Integer.parseInt(System.getProperty("java.specification.version").replace("1.", "")) >= 24;
        String wanted = Options.get("memory");
        Check.same("foreign memory", wanted == null ? warns : wanted.equals("foreign"), Memory.isForeign());
    }

    @Test
    void newMemoryIsZero() {
        for (int i = 0; i < BYTES; i++) {
            Check.same("byte " + i, 0, Memory.getByte(memory + i));
        }
    }

    @Test
    void valuesAreReadBack() {
        Memory.putLong(memory, 0x1122_3344_5566_7788L);
        Memory.putInt(memory + 12, -5);
        Memory.putByte(memory + 9, (byte) -7);
        Memory.putLongOrdered(memory + 56, Long.MIN_VALUE);
        Memory.storeFence();
        Memory.loadFence();
        Check.same("long", 0x1122_3344_5566_7788L, Memory.getLong(memory));
        Check.same("int", -5, Memory.getInt(memory + 12));
        Check.same("byte", -7, Memory.getByte(memory + 9));
        Check.same("ordered", Long.MIN_VALUE, Memory.getLongVolatile(memory + 56));
        Check.same("word with the byte and the int", 0xffff_fffb_0000_f900L, Memory.getLong(memory + 8));
        Check.same("its neighbour", 0, Memory.getLong(memory + 16));
    }

    /** Words are in the processor's order: the kernel side reads them. */
    @Test
    void theByteOrderIsTheProcessors() {
        Memory.putLong(memory, 0x1122);
        boolean little = java.nio.ByteOrder.nativeOrder() == java.nio.ByteOrder.LITTLE_ENDIAN;
        Check.same("first byte", little ? 0x22 : 0, Memory.getByte(memory));
    }

    @Test
    void noIncrementIsLost() throws InterruptedException {
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                for (int n = 0; n < TIMES; n++) {
                    Memory.increment(memory + 24);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Check.same("count", THREADS * TIMES, Memory.getLong(memory + 24));
    }
}
