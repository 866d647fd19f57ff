package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

/**
 * Where things on the Java heap are, and that it is told anew after each collection.
 *
 * <p>The JVM's tool interface counts collections in the slot file's header ({@code collector.rs}); after each the
 * background thread looks up every array again, tells those that moved, and then stores which collection that was. A
 * reader that finds a later one begun knows that what it was told is stale.
 *
 * <p>A weak JNI handle is the address of a word that the collector keeps up to date, so looking up costs one read. That
 * is how HotSpot does it and nobody's promise: it is compared with the JVM's own answer at the start and after each
 * collection, and given up for the slower answer if they differ. The JVM has such an answer for primitive arrays only, so
 * other objects have no address then.
 */
final class Addresses {
    /** What the collectors are called that move things only while the application stands still. */
    private static final String[] COLLECTORS = {
        "G1 ", "PS ", "Copy", "MarkSweepCompact", "Epsilon",
    };
    private static final int TRIES = 100;
    /** Low bits of a handle say which kind it is. */
    private static final long KIND_BITS = 7;
    private static final String TROUBLE = "addresses after a collection are asked for one by one, and sampled objects have none: handles do not agree with the JVM";

    private static volatile int way;
    private static byte[] smallArray;
    private static long[] longArray;
    private static byte[] largeArray;
    private static HeapHandle[] samples;
    /** The collection after which everything was told; none yet. */
    private static long told = -1;
    private static long movedFacts;

    private Addresses() {}

    /** Finds out what can be had in this JVM, or is wanted at most. The slot file is there already. */
    static void start() {
        int found = Contract.HEAP_ADDRESSES_POLLED;
        String wanted = String.valueOf(Options.get("addresses"));
        try {
            if (wanted.equals("off") || !movesInPauses()) {
                found = Contract.HEAP_ADDRESSES_REFUSED;
            } else if (!wanted.equals("polled") && Native.followCollections(SlotFile.address()) == 0) {
                way = Contract.HEAP_ADDRESSES_FOLLOWED;
                smallArray = new byte[24];
                longArray = new long[100];
                largeArray = new byte[20_000];
                samples = new HeapHandle[] {
                    HeapHandle.ofArray(smallArray), HeapHandle.ofArray(longArray), HeapHandle.ofArray(largeArray)
                };
                found = Contract.HEAP_ADDRESSES_FOLLOWED_SLOWLY;
                if (!wanted.equals("slow")) {
                    if (samplesAgree()) {
                        found = Contract.HEAP_ADDRESSES_FOLLOWED;
                    } else {
                        Warnings.once(TROUBLE, null);
                    }
                }
            }
        } catch (Throwable e) {
            Warnings.once("collections cannot be followed, they are polled", e);
        }
        set(found);
    }

    private static void set(int found) {
        way = found;
        SlotFile.heapAddresses(found);
    }

    static int way() {
        return way;
    }

    /** No address on the heap holds still long enough to be told. */
    static boolean refused() {
        return way == Contract.HEAP_ADDRESSES_REFUSED;
    }

    /** Collections are counted while they happen. */
    static boolean followed() {
        return way == Contract.HEAP_ADDRESSES_FOLLOWED || way == Contract.HEAP_ADDRESSES_FOLLOWED_SLOWLY;
    }

    /** Handles lead to objects by one read, so that any object has an address. */
    static boolean handlesAreRead() {
        return way == Contract.HEAP_ADDRESSES_FOLLOWED;
    }

    /** Address of the first element of the array behind a handle. */
    static long at(long handle, int elements) {
        if (way == Contract.HEAP_ADDRESSES_FOLLOWED) {
            return read(handle, elements);
        }
        return way == Contract.HEAP_ADDRESSES_REFUSED ? 0 : Native.handleAddress(handle);
    }

    /** Reads the word behind a handle. Java code stands still during a collection, so no half-done move is seen. */
    static long read(long handle, int elements) {
        long object = Memory.UNSAFE.getLong(handle & ~KIND_BITS);
        return object == 0 ? 0 : object + elements;
    }

    /** A fact that told a new address. */
    static void countMoved() {
        movedFacts++;
    }

    /** Everything alive was told again: what was told of moves before counts no more. */
    static void toldAgain() {
        movedFacts = 0;
        told = -1;
    }

    /** After a collection: looks up everything, and says so when all of it was told before the next one began. */
    static void refresh(ThreadState teller) throws InterruptedException {
        long epoch = SlotFile.collectionsEnded();
        if (epoch == told || epoch != SlotFile.collectionsBegun()) {
            return;
        }
        if (way == Contract.HEAP_ADDRESSES_FOLLOWED && !samplesAgree()) {
            Warnings.once(TROUBLE, null);
            set(Contract.HEAP_ADDRESSES_FOLLOWED_SLOWLY);
        }
        Pace pace = new Pace(teller);
        Blocks.tellMoved(pace);
        Pages.tellMoved(pace);
        if (epoch != SlotFile.collectionsBegun()) {
            // What was looked up meanwhile is stale again; its end wakes this thread for another round.
            return;
        }
        told = epoch;
        // The word first: whoever has the fact finds it.
        SlotFile.addressesTold(epoch);
        teller.facts.begin(FactForm.ADDRESSES_TOLD)
                .word(Contract.ADDRESSES_TOLD_COLLECTION, epoch)
                .word(Contract.ADDRESSES_TOLD_MOVED_FACTS, movedFacts)
                .word(Contract.ADDRESSES_TOLD_HEAP_ADDRESSES, way).tell();
        movedFacts = 0;
    }

    private static boolean movesInPauses() {
        boolean any = false;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            boolean known = false;
            for (String name : COLLECTORS) {
                known |= collector.getName().startsWith(name);
            }
            if (!known) {
                return false;
            }
            any = true;
        }
        return any;
    }

    /** Compares both ways; a collection in the middle of a comparison makes it say nothing, so it is made again. */
    private static boolean samplesAgree() {
        for (int i = 0; i < TRIES; i++) {
            long before = SlotFile.collectionsBegun();
            boolean agree = true;
            for (HeapHandle sample : samples) {
                agree &= sample.agrees();
            }
            if (agree) {
                return true;
            }
            if (before == SlotFile.collectionsBegun()) {
                return false;
            }
        }
        return false;
    }
}
