package io.smtt.marker;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryMXBean;
import java.lang.management.MemoryUsage;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.memory.MemoryManager;

/**
 * Peaks under the names of Spark's executor metrics, of this executor and of each stage attempt that runs on it. They are
 * taken when a figure may be at its highest: Spark's pools after each grant, the heap before each collection and at each
 * end of a task. Spark's own polls count too, so no peak is below Spark's.
 */
public final class MemoryPeaks {
    private static final long EVERY_NS = 1_000_000_000;
    private static final long MS = 1_000_000;
    /** Stage attempts without running tasks that are kept: their peaks go on where they run again. */
    private static final int STAGES = 256;
    private static final long NOT_READ = -1;

    private static final MemoryMXBean MEMORY = ManagementFactory.getMemoryMXBean();
    private static final BufferPoolMXBean DIRECT = MemoryFigures.buffers("direct");
    private static final BufferPoolMXBean MAPPED = MemoryFigures.buffers("mapped");
    private static final List<GarbageCollectorMXBean> COLLECTORS = ManagementFactory.getGarbageCollectorMXBeans();
    /** Spark's names by code, from 1 on. */
    private static final List<String> NAMES = Arrays.asList(Contract.PEAK_NAMES.split(" "));

    /** Peaks of one scope. Guarded by the class. */
    private static final class Peaks {
        final long[] most = new long[Contract.PEAK_METRICS];
        final long[] when = new long[Contract.PEAK_METRICS];
        int running;
        /** When its first task began, and when its last one ended, since it had none before. */
        long opened;
        long closed;
        boolean changed;

        Peaks() {
            Arrays.fill(most, NOT_READ);
        }

        void see(int metric, long value, long now) {
            if (value > most[metric]) {
                most[metric] = value;
                when[metric] = now;
                changed = true;
            }
        }
    }

    private static final Peaks EXECUTOR = new Peaks();
    /** By id and attempt, the longest unused first. */
    private static final Map<Long, Peaks> BY_STAGE = new LinkedHashMap<>(16, 0.75f, true);
    /** Peaks of the stages that run now, and of the executor. */
    private static Peaks[] open = {EXECUTOR};
    /** The pools as of the last grant or release; guarded by the class. */
    private static final long[] POOLS = {NOT_READ, NOT_READ, NOT_READ, NOT_READ};
    /** Codes of Spark's metrics by their place in its array, or null before the first poll. */
    private static int[] sparks;
    private static long told = System.nanoTime();
    private static final long[] COLLECTED = new long[COLLECTORS.size()];
    /** Time of the last sample of the collectors, or 0. This and the next two belong to the sampling thread. */
    private static long sampledBefore;
    /** Bounds of what the JVM's times of collections lack to {@link System#nanoTime}. */
    private static long offsetLeast = Long.MIN_VALUE;
    private static long offsetMost = Long.MAX_VALUE;

    private MemoryPeaks() {}

    /** Takes a figure and its value. */
    interface Figures {
        void add(int figure, long value);
    }

    /** Return of a method of Spark's memory manager that grants or releases. The caller holds the manager's monitor. */
    public static void pools(Object given) {
        try {
            MemoryManager manager = (MemoryManager) given;
            long execution = manager.onHeapExecutionMemoryUsed();
            long storage = manager.onHeapStorageMemoryUsed();
            long executionOffHeap = manager.offHeapExecutionMemoryUsed();
            long storageOffHeap = manager.offHeapStorageMemoryUsed();
            see(execution, storage, executionOffHeap, storageOffHeap);
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    static synchronized void see(long execution, long storage, long executionOffHeap, long storageOffHeap) {
        POOLS[0] = execution;
        POOLS[1] = storage;
        POOLS[2] = executionOffHeap;
        POOLS[3] = storageOffHeap;
        seePools(open, System.nanoTime());
    }

    private static void seePools(Peaks[] scopes, long now) {
        for (Peaks peaks : scopes) {
            peaks.see(Contract.PEAK_ONHEAPEXECUTIONMEMORY, POOLS[0], now);
            peaks.see(Contract.PEAK_ONHEAPSTORAGEMEMORY, POOLS[1], now);
            peaks.see(Contract.PEAK_ONHEAPUNIFIEDMEMORY, POOLS[0] + POOLS[1], now);
            peaks.see(Contract.PEAK_OFFHEAPEXECUTIONMEMORY, POOLS[2], now);
            peaks.see(Contract.PEAK_OFFHEAPSTORAGEMEMORY, POOLS[3], now);
            peaks.see(Contract.PEAK_OFFHEAPUNIFIEDMEMORY, POOLS[2] + POOLS[3], now);
        }
    }

    /** Return of Spark's own poll of all its metrics. */
    public static void polled(Object values) {
        try {
            if (values instanceof long[]) {
                see((long[]) values);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    private static synchronized void see(long[] values) {
        if (sparks == null) {
            sparks = codes();
        }
        long now = System.nanoTime();
        for (int i = 0; i < Math.min(values.length, sparks.length); i++) {
            for (Peaks peaks : open) {
                peaks.see(sparks[i], values[i], now);
            }
        }
    }

    /** Codes of the metrics in Spark's order; those with a name that is unknown here have none. */
    private static int[] codes() {
        scala.collection.mutable.LinkedHashMap<String, Object> offsets = org.apache.spark.metrics.ExecutorMetricType$.MODULE$.metricToOffset();
        int[] codes = new int[offsets.size()];
        scala.collection.Iterator<String> names = offsets.keysIterator();
        while (names.hasNext()) {
            String name = names.next();
            codes[((Number) offsets.apply(name)).intValue()] = NAMES.indexOf(name) + 1;
        }
        return codes;
    }

    /** A task of the stage begins. */
    static synchronized void began(int stage, int attempt) {
        Peaks peaks = BY_STAGE.computeIfAbsent(key(stage, attempt), key -> new Peaks());
        if (peaks.running++ == 0) {
            open = Arrays.copyOf(open, open.length + 1);
            open[open.length - 1] = peaks;
            long now = System.nanoTime();
            peaks.opened = now;
            Peaks[] one = {peaks};
            seePools(one, now);
            seeJvm(one, now);
            prune();
        }
    }

    /** A task of the stage has ended: until the next collection the heap is at its highest now. */
    static synchronized void ended(int stage, int attempt) {
        Peaks peaks = BY_STAGE.get(key(stage, attempt));
        if (peaks == null) {
            return;
        }
        seeJvm(open, System.nanoTime());
        if (--peaks.running == 0) {
            peaks.closed = System.nanoTime();
            Peaks[] rest = new Peaks[open.length - 1];
            int at = 0;
            for (Peaks one : open) {
                if (one != peaks) {
                    rest[at++] = one;
                }
            }
            open = rest;
        }
    }

    private static void seeJvm(Peaks[] scopes, long now) {
        Runtime runtime = Runtime.getRuntime();
        long heap = runtime.totalMemory() - runtime.freeMemory();
        long direct = MemoryFigures.used(DIRECT);
        long mapped = MemoryFigures.used(MAPPED);
        for (Peaks peaks : scopes) {
            peaks.see(Contract.PEAK_JVMHEAPMEMORY, heap, now);
            peaks.see(Contract.PEAK_DIRECTPOOLMEMORY, direct, now);
            peaks.see(Contract.PEAK_MAPPEDPOOLMEMORY, mapped, now);
        }
    }

    private static void prune() {
        Iterator<Map.Entry<Long, Peaks>> oldest = BY_STAGE.entrySet().iterator();
        while (BY_STAGE.size() > STAGES && oldest.hasNext()) {
            Peaks peaks = oldest.next().getValue();
            if (peaks.running == 0 && !peaks.changed) {
                oldest.remove();
            }
        }
    }

    private static long key(int stage, int attempt) {
        return (long) stage << 32 | attempt & 0xffffffffL;
    }

    /** The pools now. */
    static synchronized void addCurrent(Figures figures) {
        figures.add(Contract.MEMORY_EXECUTION_ON_HEAP, POOLS[0]);
        figures.add(Contract.MEMORY_STORAGE_ON_HEAP, POOLS[1]);
        figures.add(Contract.MEMORY_EXECUTION_OFF_HEAP, POOLS[2]);
        figures.add(Contract.MEMORY_STORAGE_OFF_HEAP, POOLS[3]);
    }

    /** Called by the marker's thread, several times per second and after each collection. */
    static void tick(ThreadState teller) {
        collected();
        long now = System.nanoTime();
        if (now - told >= EVERY_NS) {
            told = now;
            read(now);
            tell(teller);
        }
    }

    /** Reports what has changed, before the executor ends. */
    static void last(ThreadState teller) {
        collected();
        read(System.nanoTime());
        tell(teller);
    }

    /** Reports everything at the next tick. */
    static synchronized void again() {
        EXECUTOR.changed = true;
        for (Peaks peaks : BY_STAGE.values()) {
            peaks.changed = true;
        }
        told = System.nanoTime() - EVERY_NS;
    }

    private static void read(long now) {
        long heap = MEMORY.getHeapMemoryUsage().getUsed();
        long offHeap = MEMORY.getNonHeapMemoryUsage().getUsed();
        long[] minor = new long[2];
        long[] major = new long[2];
        long[] concurrent = new long[2];
        for (GarbageCollectorMXBean collector : COLLECTORS) {
            long[] of = kind(collector.getName(), minor, major, concurrent);
            of[0] += Math.max(0, collector.getCollectionCount());
            of[1] += Math.max(0, collector.getCollectionTime());
        }
        synchronized (MemoryPeaks.class) {
            seeJvm(open, now);
            for (Peaks peaks : open) {
                peaks.see(Contract.PEAK_JVMHEAPMEMORY, heap, now);
                peaks.see(Contract.PEAK_JVMOFFHEAPMEMORY, offHeap, now);
                peaks.see(Contract.PEAK_MINORGCCOUNT, minor[0], now);
                peaks.see(Contract.PEAK_MINORGCTIME, minor[1], now);
                peaks.see(Contract.PEAK_MAJORGCCOUNT, major[0], now);
                peaks.see(Contract.PEAK_MAJORGCTIME, major[1], now);
                peaks.see(Contract.PEAK_CONCURRENTGCCOUNT, concurrent[0], now);
                peaks.see(Contract.PEAK_CONCURRENTGCTIME, concurrent[1], now);
                peaks.see(Contract.PEAK_TOTALGCTIME, minor[1] + major[1] + concurrent[1], now);
            }
        }
    }

    /** As Spark's GarbageCollectionMetrics divides the collectors that a JVM has. */
    private static long[] kind(String collector, long[] minor, long[] major, long[] concurrent) {
        switch (collector) {
            case "Copy":
            case "PS Scavenge":
            case "ParNew":
            case "G1 Young Generation":
                return minor;
            case "G1 Concurrent GC":
                return concurrent;
            default:
                return major;
        }
    }

    /** After a collection: the heap was at its highest before it. */
    private static void collected() {
        long sampled = System.nanoTime();
        for (int i = 0; i < COLLECTED.length; i++) {
            GarbageCollectorMXBean collector = COLLECTORS.get(i);
            long count = collector.getCollectionCount();
            if (count == COLLECTED[i]) {
                continue;
            }
            COLLECTED[i] = count;
            try {
                Hotspot.seeLast(collector);
            } catch (Throwable otherJvm) {
                Warnings.once("the heap before a collection is unknown", otherJvm);
            }
        }
        sampledBefore = sampled;
    }

    /**
     * A collection that began at this time found so much heap in use. A stage has it where one of its tasks ran then: a
     * stage that began after it saw the heap at its own begin.
     */
    static synchronized void collected(long began, long used) {
        EXECUTOR.see(Contract.PEAK_JVMHEAPMEMORY, used, began);
        for (Peaks peaks : BY_STAGE.values()) {
            if (peaks.opened <= began && (peaks.running > 0 || began <= peaks.closed)) {
                peaks.see(Contract.PEAK_JVMHEAPMEMORY, used, began);
            }
        }
    }

    private static void tell(ThreadState teller) {
        long[] keys;
        Peaks[] all;
        synchronized (MemoryPeaks.class) {
            int count = 0;
            keys = new long[BY_STAGE.size() + 1];
            all = new Peaks[keys.length];
            for (Map.Entry<Long, Peaks> stage : BY_STAGE.entrySet()) {
                if (stage.getValue().changed) {
                    keys[count] = stage.getKey();
                    all[count++] = stage.getValue();
                }
            }
            if (EXECUTOR.changed) {
                keys[count] = -1;
                all[count++] = EXECUTOR;
            }
            all = Arrays.copyOf(all, count);
        }
        for (int i = 0; i < all.length; i++) {
            tell(teller, keys[i], all[i]);
        }
    }

    private static void tell(ThreadState teller, long key, Peaks peaks) {
        FactWriter fact = teller.facts.begin(FactForm.PEAKS_TOLD);
        int count = 0;
        synchronized (MemoryPeaks.class) {
            peaks.changed = false;
            long now = System.nanoTime();
            for (int metric = 1; metric < Contract.PEAK_METRICS; metric++) {
                if (peaks.most[metric] >= 0) {
                    fact.range(Math.max(0, now - peaks.when[metric]) / MS << Contract.FIGURE_AGE_SHIFT | metric, peaks.most[metric]);
                    count++;
                }
            }
        }
        boolean executor = key == -1;
        fact.word(Contract.PEAKS_TOLD_STAGE_ID, executor ? -1 : key >>> 32)
                .word(Contract.PEAKS_TOLD_STAGE_ATTEMPT, executor ? -1 : key & 0xffffffffL)
                .word(Contract.PEAKS_TOLD_FIGURES, count).tell();
    }

    /** A class of its own: JVMs may lack the interface. */
    private static final class Hotspot {
        private static final java.util.Set<String> HEAP = heapPools();

        private Hotspot() {}

        private static java.util.Set<String> heapPools() {
            java.util.Set<String> names = new java.util.HashSet<>();
            for (java.lang.management.MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
                if (pool.getType() == java.lang.management.MemoryType.HEAP) {
                    names.add(pool.getName());
                }
            }
            return names;
        }

        /**
         * Takes the used heap before the collector's last collection. The JVM counts its collections in milliseconds from
         * an origin at its start that it does not publish; what they lack to {@link System#nanoTime} follows from their
         * ends: this one ended after the previous sample, and before now; and at the end that the tool interface
         * reported, where that was its own.
         */
        static void seeLast(GarbageCollectorMXBean collector) {
            com.sun.management.GcInfo last = ((com.sun.management.GarbageCollectorMXBean) collector).getLastGcInfo();
            if (last == null) {
                return;
            }
            long used = 0;
            for (Map.Entry<String, MemoryUsage> pool : last.getMemoryUsageBeforeGc().entrySet()) {
                used += HEAP.contains(pool.getKey()) ? pool.getValue().getUsed() : 0;
            }
            long end = last.getEndTime() * MS;
            offsetMost = Math.min(offsetMost, System.nanoTime() - end);
            if (sampledBefore != 0) {
                offsetLeast = Math.max(offsetLeast, sampledBefore - end - MS);
            }
            long told = Addresses.followed() ? SlotFile.collectionEnded() : 0;
            long offset = told == 0 ? offsetMost : Math.max(offsetLeast, Math.min(offsetMost, told - end));
            collected(offset + last.getStartTime() * MS, used);
        }
    }
}
