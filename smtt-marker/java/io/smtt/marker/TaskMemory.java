package io.smtt.marker;

import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.unsafe.memory.MemoryBlock;

/**
 * What one of Spark's task memory managers holds. The sum of its pages and grants is what Spark answers from
 * {@code getMemoryConsumptionForThisTask}.
 */
final class TaskMemory extends WeakReference<Object> {
    private static final ReferenceQueue<Object> GONE = new ReferenceQueue<>();
    /** Keeps these references reachable until their manager is gone. */
    private static final Set<TaskMemory> ALL = Collections.newSetFromMap(new ConcurrentHashMap<>());

    private static final long ON_HEAP = 1;
    private static final long TOLD_AGAIN = 8;

    /** One page. Its array is not kept alive: Spark pools arrays and lets the collector take them. */
    private static final class Page {
        final long number;
        final long sizeBytes;
        final HeapArray array;
        final long offset;
        final String consumer;
        final long rdd;
        long address;

        Page(long number, MemoryBlock block, String consumer, long rdd) {
            this.number = number;
            sizeBytes = block.size();
            this.consumer = consumer;
            this.rdd = rdd;
            Object base = block.getBaseObject();
            array = base == null ? null : new HeapArray(base);
            offset = base == null ? 0 : block.getBaseOffset() - Memory.LONG_ARRAY_OFFSET;
            address = base == null ? block.getBaseOffset() : at();
        }

        /** Where its array is now; where it was last, when the collector has taken it. */
        long at() {
            long start = array.address();
            return start == 0 ? address : start + offset;
        }

        void forget() {
            if (array != null) {
                array.forget();
            }
        }
    }

    /** What one consumer was granted without a page, and the RDD of the first grant. */
    private static final class Grant {
        final long rdd;
        long bytes;

        Grant(long rdd) {
            this.rdd = rdd;
        }
    }

    private static final AtomicLong MANAGERS = new AtomicLong();

    private final long taskAttemptId;
    private final int stageId;
    /** Added to page numbers: managers without a task share the attempt id -1, so their numbers must differ. */
    private final long numbersFrom;
    private final Map<Long, Page> pages = new HashMap<>();
    private final Map<String, Grant> grants = new HashMap<>();
    private long heldBytes;
    private long peakBytes;

    TaskMemory(Object manager, Task owner) {
        super(manager, GONE);
        taskAttemptId = owner == null ? -1 : owner.attemptId;
        stageId = owner == null ? -1 : owner.stageId;
        numbersFrom = owner == null ? MANAGERS.incrementAndGet() << 16 : 0;
        ALL.add(this);
    }

    synchronized long peakBytes() {
        return peakBytes;
    }

    synchronized void add(MemoryBlock block, String consumer, ThreadState state) {
        Page page = new Page(numbersFrom + block.pageNumber, block, consumer, rdd(state));
        Page before = pages.get(page.number);
        if (before != null && before.address == page.address && before.sizeBytes == page.sizeBytes) {
            // Spark's allocatePage calls itself when memory was short: one page, two returns.
            page.forget();
            return;
        }
        pages.put(page.number, page);
        if (before != null) {
            before.forget();
            tellFreed(state, before.number, before.address, before.sizeBytes, before.array != null, before.consumer);
            hold(-before.sizeBytes);
        }
        hold(page.sizeBytes);
        tellPage(state, page, 0);
    }

    synchronized void free(MemoryBlock block, ThreadState state) {
        Page page = pages.remove(numbersFrom + block.pageNumber);
        if (page != null) {
            page.forget();
            tellFreed(state, page.number, page.address, page.sizeBytes, page.array != null, page.consumer);
            hold(-page.sizeBytes);
        }
    }

    synchronized void grant(String consumer, long bytes, ThreadState state) {
        Grant grant = grants.computeIfAbsent(consumer, name -> new Grant(rdd(state)));
        grant.bytes += bytes;
        hold(bytes);
        tellAllocated(state, -1, 0, bytes, 0, grant.rdd, consumer);
    }

    synchronized void release(String consumer, long bytes, ThreadState state) {
        Grant grant = grants.get(consumer);
        if (grant == null) {
            return;
        }
        long less = Math.min(grant.bytes, bytes);
        grant.bytes -= less;
        if (grant.bytes == 0) {
            grants.remove(consumer);
        }
        hold(-less);
        tellFreed(state, -1, 0, less, false, consumer);
    }

    /** Everything is given back at once. */
    synchronized void clean(ThreadState state) {
        for (Page page : pages.values()) {
            page.forget();
            tellFreed(state, page.number, page.address, page.sizeBytes, page.array != null, page.consumer);
        }
        for (Map.Entry<String, Grant> grant : grants.entrySet()) {
            tellFreed(state, -1, 0, grant.getValue().bytes, false, grant.getKey());
        }
        pages.clear();
        grants.clear();
        heldBytes = 0;
    }

    synchronized void tellAgain(ThreadState state) {
        for (Page page : pages.values()) {
            tellPage(state, page, TOLD_AGAIN);
        }
        // The sum that is held now, not one grant: they are not kept apart.
        for (Map.Entry<String, Grant> grant : grants.entrySet()) {
            tellAllocated(state, -1, 0, grant.getValue().bytes, TOLD_AGAIN, grant.getValue().rdd, grant.getKey());
        }
    }

    synchronized void tellMoved(ThreadState state) {
        for (Page page : pages.values()) {
            if (page.array == null) {
                continue;
            }
            long now = page.at();
            if (now != page.address) {
                page.address = now;
                tellPage(state, page, TOLD_AGAIN);
                Addresses.countMoved();
            }
        }
    }

    /** Frees what managers held that no longer exist. */
    static void reap(ThreadState state) {
        for (Reference<?> gone = GONE.poll(); gone != null; gone = GONE.poll()) {
            ((TaskMemory) gone).clean(state);
            ALL.remove(gone);
        }
    }

    private void hold(long bytes) {
        heldBytes += bytes;
        peakBytes = Math.max(peakBytes, heldBytes);
    }

    private static long rdd(ThreadState state) {
        return Words.rddId(state.pipeline != null ? state.pipeline.rdd : state.hot());
    }

    private void tellPage(ThreadState state, Page page, long flags) {
        tellAllocated(state, page.number, page.address, page.sizeBytes, flags | (page.array != null ? ON_HEAP : 0), page.rdd, page.consumer);
    }

    private void tellAllocated(ThreadState state, long number, long address, long bytes, long flags, long rdd, String consumer) {
        state.facts.begin(FactForm.PAGE_ALLOCATED).word(taskAttemptId).word(number).word(address).word(bytes).word(flags)
                .word(rdd).word(stageId).text(consumer, 200).tell();
    }

    private void tellFreed(ThreadState state, long number, long address, long bytes, boolean onHeap, String consumer) {
        state.facts.begin(FactForm.PAGE_FREED).word(taskAttemptId).word(number).word(address).word(bytes).word(onHeap ? ON_HEAP : 0)
                .text(consumer, 200).tell();
    }
}
