package io.smtt.marker;

import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryUsage;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;

/**
 * Where the memory of this JVM is: reported every second by the marker's thread, from the JVM's own counts.
 *
 * <p>How much of the heap and of the stacks is resident is examined ({@link Native#examineMemory}) when the process's
 * anonymous memory has changed, and otherwise every ten seconds, for at most {@link #SHARE} of one CPU.
 */
final class MemoryFigures {
    private static final long EVERY_NS = 1_000_000_000;
    /** Time after which the resident parts are examined even where nothing seems to have changed. */
    private static final long EXAMINE_NS = 10_000_000_000L;
    /** Examinations take at most one part of a CPU's time in this many; the option {@code examine} sets another. */
    private static final long SHARE = share(Options.get("examine"));
    private static final long DEFAULT_SHARE = 2000;
    /** CPU time for examinations that may be saved up. */
    private static final long CREDIT_MAX_NS = 20_000_000;
    /** One part in this many of the anonymous memory has to change. */
    private static final long CHANGE = 256;

    // Words of Native.examineMemory.
    private static final int HEAP = 0;
    private static final int CODE = 1;
    private static final int STACKS = 2;
    private static final int THREADS = 3;
    private static final int ANONYMOUS = 4;
    private static final int CPU = 5;
    private static final int WORDS = 6;

    private static final List<MemoryPoolMXBean> POOLS = ManagementFactory.getMemoryPoolMXBeans();
    private static final BufferPoolMXBean DIRECT = buffers("direct");
    private static final BufferPoolMXBean MAPPED = buffers("mapped");

    private static long result;
    private static long told = System.nanoTime() - EVERY_NS;
    private static long examined = System.nanoTime() - EXAMINE_NS;
    private static long credit = CREDIT_MAX_NS;
    private static long credited = System.nanoTime();
    private static long anonymous = -1;
    private static int count;
    private static Limits limits;

    private MemoryFigures() {}

    private static long share(String wanted) {
        try {
            return wanted == null ? DEFAULT_SHARE : Math.max(1, Long.parseLong(wanted));
        } catch (NumberFormatException e) {
            Warnings.once("agent option examine=" + wanted + " is no number and is ignored", null);
            return DEFAULT_SHARE;
        }
    }

    /** Called by the marker's thread, several times per second. */
    static void tick(ThreadState teller) {
        long now = System.nanoTime();
        if (now - told < EVERY_NS) {
            return;
        }
        told = now;
        tell(teller, now);
    }

    /** Reports at the next tick whatever the time is: a daemon that starts later asks for it. */
    static void again() {
        told = System.nanoTime() - EVERY_NS;
        examined = System.nanoTime() - EXAMINE_NS;
        limits = null;
    }

    private static void tell(ThreadState teller, long now) {
        boolean examine = due(now);
        FactWriter fact = teller.facts.begin(FactForm.MEMORY_TOLD);
        count = 0;
        if (examine) {
            examine(fact, now);
        }
        MemoryUsage heap = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage();
        add(fact, Contract.MEMORY_HEAP_USED, heap.getUsed());
        add(fact, Contract.MEMORY_HEAP_COMMITTED, heap.getCommitted());
        pools(fact);
        add(fact, Contract.MEMORY_DIRECT, used(DIRECT));
        add(fact, Contract.MEMORY_MAPPED, used(MAPPED));
        MemoryPeaks.addCurrent((code, bytes) -> add(fact, code, bytes));
        if (limits == null) {
            limits = Limits.read();
        }
        limits.add(fact);
        fact.word(Contract.MEMORY_TOLD_FLAGS,
                (examine ? Contract.MEMORY_EXAMINED : 0) | (limits.overheadIsDefault ? Contract.OVERHEAD_IS_DEFAULT : 0))
                .word(Contract.MEMORY_TOLD_FIGURES, count).tell();
    }

    private static boolean due(long now) {
        credit = Math.min(CREDIT_MAX_NS, credit + (now - credited) / SHARE);
        credited = now;
        if (credit <= 0) {
            return false;
        }
        long resident = Native.anonymousBytes();
        return now - examined >= EXAMINE_NS || Math.abs(resident - anonymous) > anonymous / CHANGE;
    }

    private static void examine(FactWriter fact, long now) {
        if (result == 0) {
            result = Memory.allocate(WORDS * Long.BYTES);
        }
        Native.examineMemory(result);
        long before = System.nanoTime();
        add(fact, Contract.MEMORY_EXECUTION_OFF_HEAP_RESIDENT, Pages.offHeapResident());
        add(fact, Contract.MEMORY_STORAGE_OFF_HEAP_RESIDENT, Blocks.offHeapResident());
        long cpu = word(CPU) + (System.nanoTime() - before);
        examined = now;
        anonymous = word(ANONYMOUS);
        credit -= cpu;
        // ZGC keeps its heap elsewhere than in the range that HotSpot's table names: nothing is resident there.
        add(fact, Contract.MEMORY_HEAP_RESIDENT, word(HEAP) > 0 ? word(HEAP) : -1);
        add(fact, Contract.MEMORY_CODE_RESIDENT, word(CODE));
        add(fact, Contract.MEMORY_STACKS_RESIDENT, word(STACKS));
        add(fact, Contract.MEMORY_THREADS, word(THREADS));
        add(fact, Contract.MEMORY_ANONYMOUS, anonymous);
        add(fact, Contract.MEMORY_EXAMINATION_NS, cpu);
    }

    private static long word(int word) {
        return Memory.getLong(result + (long) word * Long.BYTES);
    }

    private static void pools(FactWriter fact) {
        long code = -1;
        for (int i = 0; i < POOLS.size(); i++) {
            MemoryPoolMXBean pool = POOLS.get(i);
            String name = pool.getName();
            if (name.equals("Metaspace")) {
                // The compressed class space is a part of it.
                add(fact, Contract.MEMORY_METASPACE, pool.getUsage().getCommitted());
            } else if (name.startsWith("CodeHeap") || name.equals("CodeCache") || name.equals("Code Cache")) {
                code = Math.max(0, code) + pool.getUsage().getCommitted();
            }
        }
        add(fact, Contract.MEMORY_CODE_COMMITTED, code);
    }

    /** Adds a figure that is known. */
    private static void add(FactWriter fact, int figure, long value) {
        if (value >= 0) {
            fact.range(figure, value);
            count++;
        }
    }

    static long used(BufferPoolMXBean pool) {
        return pool == null ? -1 : pool.getMemoryUsed();
    }

    static BufferPoolMXBean buffers(String name) {
        for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
            if (pool.getName().equals(name)) {
                return pool;
            }
        }
        return null;
    }

    /** What was configured; it does not change while the JVM runs. */
    private static final class Limits {
        private static final long MIB = 1 << 20;

        private long heapMax = -1;
        private long directMax = -1;
        private long executorMemory = -1;
        private long overhead = -1;
        private long offHeap = -1;
        private long python = -1;
        private boolean overheadIsDefault;

        static Limits read() {
            Limits limits = new Limits();
            limits.heapMax = Runtime.getRuntime().maxMemory();
            limits.directMax = limits.heapMax;
            try {
                limits.heapMax = Hotspot.option("MaxHeapSize");
                long direct = Hotspot.option("MaxDirectMemorySize");
                limits.directMax = direct > 0 ? direct : limits.directMax;
            } catch (Throwable otherJvm) {
                // Then the JVM's own estimate has to do.
            }
            try {
                SparkEnv env = SparkEnv.get();
                if (env != null) {
                    limits.configured(env.conf());
                }
            } catch (Throwable e) {
                Warnings.once("the configured limits of memory are not reported", e);
            }
            return limits;
        }

        private void configured(SparkConf conf) {
            executorMemory = conf.getSizeAsMb("spark.executor.memory", "1g") * MIB;
            overheadIsDefault = !conf.contains("spark.executor.memoryOverhead");
            double factor = conf.getDouble("spark.executor.memoryOverheadFactor", 0.1);
            long least = conf.getSizeAsMb("spark.executor.minMemoryOverhead", "384m") * MIB;
            overhead = overheadIsDefault ? Math.max(least, (long) (executorMemory * factor))
                    : conf.getSizeAsMb("spark.executor.memoryOverhead") * MIB;
            if (conf.getBoolean("spark.memory.offHeap.enabled", false)) {
                offHeap = conf.getSizeAsBytes("spark.memory.offHeap.size", "0");
            }
            if (conf.contains("spark.executor.pyspark.memory")) {
                python = conf.getSizeAsMb("spark.executor.pyspark.memory") * MIB;
            }
        }

        void add(FactWriter fact) {
            MemoryFigures.add(fact, Contract.MEMORY_HEAP_MAX, heapMax);
            MemoryFigures.add(fact, Contract.MEMORY_DIRECT_MAX, directMax);
            MemoryFigures.add(fact, Contract.MEMORY_EXECUTOR_MEMORY, executorMemory);
            MemoryFigures.add(fact, Contract.MEMORY_MEMORY_OVERHEAD, overhead);
            MemoryFigures.add(fact, Contract.MEMORY_OFF_HEAP_SIZE, offHeap);
            MemoryFigures.add(fact, Contract.MEMORY_PYSPARK_MEMORY, python);
        }
    }

    /** A class of its own: JVMs may lack the interface. */
    private static final class Hotspot {
        private Hotspot() {}

        static long option(String name) {
            return Long.parseLong(ManagementFactory.getPlatformMXBean(com.sun.management.HotSpotDiagnosticMXBean.class)
                    .getVMOption(name).getValue());
        }
    }
}
