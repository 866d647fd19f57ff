package io.smtt.marker;

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.List;

/**
 * What a task uses. The JVM counts the heap; the kernel side reads the kernel's accounts of the thread when it sees
 * {@code taskBegun} and {@code taskEnded}. Used by the task's own thread only, except by {@link #tellRunning}.
 */
final class Accounts {
    private static final long NONE = -1;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final List<GarbageCollectorMXBean> COLLECTORS = ManagementFactory.getGarbageCollectorMXBeans();
    /** Whether this JVM counts the bytes that a thread allocates. */
    private static final boolean HEAP_COUNTED = heapCounted();
    private static final boolean CPU_COUNTED = THREADS.isCurrentThreadCpuTimeSupported() && THREADS.isThreadCpuTimeEnabled();

    /** Task that this thread has begun, or -1. */
    private volatile long attemptId = NONE;
    private long allocatedBytes;
    private long collectionMs;
    /** Task that {@link #tellRunning} has seen. */
    private long seen = NONE;

    /** The thread begins a task. {@code late}: the task has been running already. */
    void begin(ThreadState state, long task, boolean late) {
        if (attemptId == task) {
            return;
        }
        try {
            // The thread of tellRunning finds no task while its start changes.
            attemptId = NONE;
            collectionMs = collections();
            allocatedBytes = allocated();
            attemptId = task;
            bringUpToDate();
            state.facts.begin(FactForm.TASK_BEGUN)
                    .word(Contract.TASK_BEGUN_TASK_ATTEMPT_ID, task)
                    .word(Contract.TASK_BEGUN_FLAGS, late ? Contract.BEGUN_LATE : 0).tell();
        } catch (Throwable e) {
            // Such as a native library of an earlier marker.
            Warnings.once("what tasks use is not reported", e);
        }
    }

    /** The thread is about to report the end of a task. */
    void end(ThreadState state, long task) {
        if (attemptId != task) {
            return;
        }
        attemptId = NONE;
        try {
            long allocated = allocated();
            long collected = collections();
            state.facts.begin(FactForm.TASK_HEAP)
                    .word(Contract.TASK_HEAP_TASK_ATTEMPT_ID, task)
                    .word(Contract.TASK_HEAP_ALLOCATED_BYTES, grown(allocatedBytes, allocated))
                    .word(Contract.TASK_HEAP_COLLECTION_MS, grown(collectionMs, collected)).tell();
            bringUpToDate();
        } catch (Throwable e) {
            Warnings.once("what tasks use is not reported", e);
        }
    }

    /**
     * Reports what a running task has allocated, from the second call on, so that short tasks cost nothing. Called by
     * one thread only; {@code thread} runs the task.
     */
    void tellRunning(ThreadState teller, Thread thread) {
        long task = attemptId;
        if (task == NONE || task != seen || !HEAP_COUNTED) {
            seen = task;
            return;
        }
        long before = allocatedBytes;
        long now = Hotspot.allocated(thread);
        // The task may have ended, and the next one have begun.
        if (attemptId == task && before >= 0 && now >= before) {
            teller.facts.begin(FactForm.TASK_HEAP_SO_FAR)
                    .word(Contract.TASK_HEAP_SO_FAR_TASK_ATTEMPT_ID, task)
                    .word(Contract.TASK_HEAP_SO_FAR_ALLOCATED_BYTES, now - before).tell();
        }
    }

    /**
     * The kernel adds to a running thread's CPU time at timer ticks and context switches only. A reader of the
     * time of a running thread makes it add what is missing, so that the kernel side reads all of it.
     */
    static void bringUpToDate() {
        if (CPU_COUNTED) {
            THREADS.getCurrentThreadCpuTime();
        }
    }

    static long grown(long before, long now) {
        return before == NONE || now == NONE ? NONE : Math.max(0, now - before);
    }

    private static long collections() {
        long sum = 0;
        // No iterator: what is measured here is also what the thread allocates.
        for (int i = 0; i < COLLECTORS.size(); i++) {
            long ms = COLLECTORS.get(i).getCollectionTime();
            if (ms < 0) {
                return NONE;
            }
            sum += ms;
        }
        return sum;
    }

    static long allocated() {
        return HEAP_COUNTED ? Hotspot.allocated(Thread.currentThread()) : NONE;
    }

    private static boolean heapCounted() {
        try {
            return Hotspot.counts();
        } catch (Throwable otherJvm) {
            return false;
        }
    }

    /** A class of its own: JVMs may lack the interface. */
    private static final class Hotspot {
        private static final com.sun.management.ThreadMXBean COUNTING = (com.sun.management.ThreadMXBean) THREADS;

        private Hotspot() {}

        static boolean counts() {
            return COUNTING.isThreadAllocatedMemorySupported() && COUNTING.isThreadAllocatedMemoryEnabled();
        }

        static long allocated(Thread thread) {
            return COUNTING.getThreadAllocatedBytes(thread.getId());
        }
    }
}
