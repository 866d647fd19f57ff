package io.smtt.marker;

import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.unsafe.memory.MemoryBlock;

/**
 * The memory of one of Spark's task memory managers. The sum of its pages and grants equals the result of Spark's
 * {@code getMemoryConsumptionForThisTask}.
 */
final class TaskMemory extends WeakReference<Object> {
    private static final ReferenceQueue<Object> GONE = new ReferenceQueue<>();
    /** Keeps these references reachable until their manager is gone. */
    private static final Set<TaskMemory> ALL = Collections.newSetFromMap(new ConcurrentHashMap<>());

    /** Loaded with the first page on the heap: Spark's class for raw memory, which this needs, exists by then. */
    static final class SparksLayout {
        /** Offset of an array's first element, as Spark adds it to the offsets of its pages. */
        static final long LONG_ARRAY_OFFSET = MemoryBlock.fromLongArray(new long[0]).getBaseOffset();

        private SparksLayout() {}
    }

    /** One page. Its array is not kept alive: Spark pools arrays and lets the collector take them. */
    private static final class Page {
        final long number;
        final long sizeBytes;
        final HeapHandle array;
        final long offset;
        final Consumers.Consumer consumer;
        final long rdd;
        long address;

        Page(long number, MemoryBlock block, Consumers.Consumer consumer, long rdd) {
            this.number = number;
            sizeBytes = block.size();
            this.consumer = consumer;
            this.rdd = rdd;
            Object base = block.getBaseObject();
            array = base == null ? null : HeapHandle.ofArray(base);
            offset = base == null ? 0 : block.getBaseOffset() - SparksLayout.LONG_ARRAY_OFFSET;
            address = base == null ? block.getBaseOffset() : at();
        }

        /** Current address of the array, or its last address after the collector has freed it. */
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

    /** Bytes that one consumer was granted without a page, and the RDD of the first grant. */
    private static final class Grant {
        final long rdd;
        long bytes;

        Grant(long rdd) {
            this.rdd = rdd;
        }
    }

    /** Page number of a grant without a page. */
    private static final long NO_PAGE = -1;

    private static final AtomicLong MANAGERS = new AtomicLong();

    private final long taskAttemptId;
    private final int stageId;
    /** Added to page numbers: managers without a task share the attempt id -1, so their numbers must differ. */
    private final long numbersFrom;
    private final Map<Long, Page> pages = new HashMap<>();
    private final Map<String, Grant> grants = new HashMap<>();
    private final Consumers consumers = new Consumers();
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

    /** Spark updates a consumer's recorded peak. */
    synchronized void seen(Object consumer) {
        consumers.seen(consumer);
    }

    /** Spark reads a consumer's peak. */
    synchronized void asked(Object consumer) {
        consumers.asked(consumer);
    }

    /** Spark adds to the task's peak. */
    synchronized void counted(long bytes) {
        consumers.counted(bytes);
    }

    /** The task was running before the agent was attached. */
    synchronized void incomplete() {
        consumers.incomplete();
    }

    /** Reports the use of each class of consumers, at the end of the task. */
    synchronized void tellUse(ThreadState state) {
        consumers.tell(state, taskAttemptId);
    }

    synchronized void add(MemoryBlock block, Object by, ThreadState state) {
        Consumers.Consumer consumer = consumers.of(by);
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
            tellFreed(state, before.number, before.address, before.sizeBytes, before.array != null, before.consumer.name);
            hold(before.consumer, -before.sizeBytes);
        }
        hold(consumer, page.sizeBytes);
        tellPage(state, page, activity(state));
    }

    synchronized void free(MemoryBlock block, ThreadState state) {
        Page page = pages.remove(numbersFrom + block.pageNumber);
        if (page != null) {
            page.forget();
            tellFreed(state, page.number, page.address, page.sizeBytes, page.array != null, page.consumer.name);
            hold(page.consumer, -page.sizeBytes);
        }
    }

    synchronized void grant(Object by, long bytes, ThreadState state) {
        Consumers.Consumer consumer = consumers.of(by);
        Grant grant = grants.computeIfAbsent(consumer.name, name -> new Grant(rdd(state)));
        grant.bytes += bytes;
        hold(consumer, bytes);
        tellAllocated(state, NO_PAGE, Contract.NO_ADDRESS, bytes, activity(state), grant.rdd, consumer.name);
    }

    synchronized void release(Object by, long bytes, ThreadState state) {
        Consumers.Consumer consumer = consumers.of(by);
        Grant grant = grants.get(consumer.name);
        if (grant == null) {
            return;
        }
        long less = Math.min(grant.bytes, bytes);
        grant.bytes -= less;
        if (grant.bytes == 0) {
            grants.remove(consumer.name);
        }
        hold(consumer, -less);
        tellFreed(state, NO_PAGE, Contract.NO_ADDRESS, less, false, consumer.name);
    }

    /** Frees all memory of the manager at once. */
    synchronized void clean(ThreadState state) {
        for (Page page : pages.values()) {
            page.forget();
            tellFreed(state, page.number, page.address, page.sizeBytes, page.array != null, page.consumer.name);
        }
        for (Map.Entry<String, Grant> grant : grants.entrySet()) {
            tellFreed(state, NO_PAGE, Contract.NO_ADDRESS, grant.getValue().bytes, false, grant.getKey());
        }
        pages.clear();
        grants.clear();
        consumers.clear();
        heldBytes = 0;
    }

    synchronized void tellAgain(ThreadState state) {
        for (Page page : pages.values()) {
            tellPage(state, page, Contract.REPORTED_AGAIN);
        }
        // The sum of the consumer's grants: single grants are not recorded.
        for (Map.Entry<String, Grant> grant : grants.entrySet()) {
            tellAllocated(state, NO_PAGE, Contract.NO_ADDRESS, grant.getValue().bytes, Contract.REPORTED_AGAIN, grant.getValue().rdd, grant.getKey());
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
                tellPage(state, page, Contract.REPORTED_AGAIN);
                Addresses.countMoved();
            }
        }
    }

    /** Resident bytes of the pages outside of the heap. */
    long offHeapResident() {
        List<long[]> ranges = new ArrayList<>();
        synchronized (this) {
            for (Page page : pages.values()) {
                if (page.array == null) {
                    ranges.add(new long[] {page.address, page.sizeBytes});
                }
            }
        }
        // Not under the lock, for which the task would wait. A page that is freed meanwhile is not resident.
        long sum = 0;
        for (long[] range : ranges) {
            sum += Math.max(0, Native.residentBytes(range[0], range[1]));
        }
        return sum;
    }

    /** Frees the memory of managers that no longer exist. */
    static void reap(ThreadState state) {
        for (Reference<?> gone = GONE.poll(); gone != null; gone = GONE.poll()) {
            ((TaskMemory) gone).clean(state);
            ALL.remove(gone);
        }
    }

    private void hold(Consumers.Consumer consumer, long bytes) {
        consumer.hold(bytes);
        heldBytes += bytes;
        peakBytes = Math.max(peakBytes, heldBytes);
    }

    private static long rdd(ThreadState state) {
        return Words.rddId(state.pipeline != null ? state.pipeline.rdd : state.hot());
    }

    /** The thread's activity as bits of {@code flags}. */
    private static long activity(ThreadState state) {
        return (long) Words.activity(state.hot()) << Contract.PAGE_ACTIVITY_SHIFT;
    }

    private void tellPage(ThreadState state, Page page, long flags) {
        long all = flags | (page.array != null ? Contract.PAGE_ON_HEAP : 0);
        tellAllocated(state, page.number, page.address, page.sizeBytes, all, page.rdd, page.consumer.name);
    }

    private void tellAllocated(ThreadState state, long number, long address, long bytes, long flags, long rdd, String consumer) {
        state.facts.begin(FactForm.PAGE_ALLOCATED)
                .word(Contract.PAGE_ALLOCATED_TASK_ATTEMPT_ID, taskAttemptId)
                .word(Contract.PAGE_ALLOCATED_PAGE_NUMBER, number)
                .word(Contract.PAGE_ALLOCATED_ADDRESS, address)
                .word(Contract.PAGE_ALLOCATED_SIZE_BYTES, bytes)
                .word(Contract.PAGE_ALLOCATED_FLAGS, flags)
                .word(Contract.PAGE_ALLOCATED_RDD_ID, rdd)
                .word(Contract.PAGE_ALLOCATED_STAGE_ID, stageId)
                .text(Contract.PAGE_ALLOCATED_CONSUMER, consumer).tell();
    }

    private void tellFreed(ThreadState state, long number, long address, long bytes, boolean onHeap, String consumer) {
        state.facts.begin(FactForm.PAGE_FREED)
                .word(Contract.PAGE_FREED_TASK_ATTEMPT_ID, taskAttemptId)
                .word(Contract.PAGE_FREED_PAGE_NUMBER, number)
                .word(Contract.PAGE_FREED_ADDRESS, address)
                .word(Contract.PAGE_FREED_SIZE_BYTES, bytes)
                .word(Contract.PAGE_FREED_FLAGS, activity(state) | (onHeap ? Contract.PAGE_ON_HEAP : 0))
                .text(Contract.PAGE_FREED_CONSUMER, consumer).tell();
    }
}
