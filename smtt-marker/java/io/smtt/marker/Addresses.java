package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

/**
 * Tracks addresses on the Java heap and reports the changed ones after each collection.
 *
 * <p>The JVM's tool interface counts collections in the slot file's header ({@code collector.rs}); after each the
 * background thread looks up every array again, reports the new addresses, and then stores the number of that
 * collection as the epoch of the addresses. If a later collection has begun, a reader knows that they are stale.
 *
 * <p>A weak JNI handle is the address of a word that the collector keeps up to date, so a look-up costs one read. This
 * is HotSpot's implementation and not part of its interface, so the marker compares it with the JVM's own answer at the
 * start and after each collection, and uses the slower answer if they differ. The JVM has such an answer for primitive
 * arrays only; other objects then have no address.
 */
final class Addresses {
    /** Names of the collectors that move objects only while the application is stopped. */
    private static final String[] COLLECTORS = {
        "G1 ", "PS ", "Copy", "MarkSweepCompact", "Epsilon",
    };
    private static final int TRIES = 100;
    /** Low bits of a handle: its kind. */
    private static final long KIND_BITS = 7;
    private static final String TROUBLE = "addresses after a collection are asked for one by one, and sampled objects have none: handles do not agree with the JVM";

    private static volatile int way;
    private static byte[] smallArray;
    private static long[] longArray;
    private static byte[] largeArray;
    private static HeapHandle[] samples;
    /** Epoch of the reported addresses: the collection after which every address was reported; -1 before the first. */
    private static long told = -1;
    private static long movedFacts;

    private Addresses() {}

    /** Selects the best method that this JVM offers and the options allow. The slot file exists already. */
    static void start() {
        int found = Contract.HEAP_ADDRESSES_POLLED;
        String wanted = String.valueOf(Options.get("addresses"));
        try {
            boolean reported = !wanted.equals("polled") && Native.followCollections(SlotFile.address()) == 0;
            if (reported && Pauses.areComplete(Memory.release())) {
                Pauses.start();
            }
            if (wanted.equals("off") || !movesInPauses()) {
                found = Contract.HEAP_ADDRESSES_REFUSED;
            } else if (reported) {
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

    /** No address on the heap is stable long enough to be reported. */
    static boolean refused() {
        return way == Contract.HEAP_ADDRESSES_REFUSED;
    }

    /** Collections are counted while they happen. */
    static boolean followed() {
        return way == Contract.HEAP_ADDRESSES_FOLLOWED || way == Contract.HEAP_ADDRESSES_FOLLOWED_SLOWLY;
    }

    /** Handles can be read directly, so that any object has an address. */
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

    /** Reads the word behind a handle. Java code is stopped during a collection, so no unfinished move is visible. */
    static long read(long handle, int elements) {
        long object = Memory.getLong(handle & ~KIND_BITS);
        return object == 0 ? 0 : object + elements;
    }

    /** Counts a fact that reported a new address. */
    static void countMoved() {
        movedFacts++;
    }

    /** After a snapshot: facts about earlier moves no longer count. */
    static void toldAgain() {
        movedFacts = 0;
        told = -1;
    }

    /**
     * After a collection: looks up all addresses, and reports the epoch if the next collection has not begun by then.
     */
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
            // The looked-up addresses are stale again; the end of the collection wakes this thread for another round.
            return;
        }
        told = epoch;
        // The word first, so that a reader of the fact finds it.
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

    /** Compares both methods; a collection during a comparison makes the result useless, so it is repeated. */
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
