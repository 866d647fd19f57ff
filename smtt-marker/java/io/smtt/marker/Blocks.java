package io.smtt.marker;

import java.lang.reflect.Field;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.MemoryStore;

/**
 * Hooks around blocks in memory. Spark's memory store keeps them in one map, and these hooks cover all calls that
 * change it, on every thread and in every version.
 */
public final class Blocks {
    private static final ConcurrentHashMap<String, BlockRecord> ALIVE = new ConcurrentHashMap<>();

    private Blocks() {}

    /** {@code entries.put} in the memory store. */
    public static Object put(LinkedHashMap<Object, Object> entries, Object id, Object entry) {
        Object before = entries.put(id, entry);
        try {
            stored(id, entry);
        } catch (Throwable e) {
            Scopes.failed(e);
        }
        return before;
    }

    /** {@code entries.remove} in the memory store: unpersisted, evicted or cleaned. */
    public static Object remove(LinkedHashMap<Object, Object> entries, Object id) {
        Object before = entries.remove(id);
        try {
            if (before != null) {
                removed(((BlockId) id).name());
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
        return before;
    }

    /** {@code entries.clear} in the memory store. */
    public static void clear(LinkedHashMap<Object, Object> entries) {
        entries.clear();
        try {
            for (String id : ALIVE.keySet()) {
                removed(id);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of unrolling a block: the thread writes the cache, and pulls what it caches. */
    public static Object beginUnroll(int hook, Object block) {
        try {
            ThreadState state = ThreadState.currentInTask();
            // Replicas are written by network threads, which have no task.
            state.register();
            Frame frame = new Frame(state, HookTable.at(hook));
            frame.rdd = rddBits(block, frame.rdd);
            Scopes.pullFrom(frame);
            state.hot(frame.hook.tag | frame.rdd);
            return frame;
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    /** Entry of dropping a block from memory, on the thread that needs the room: it counts for the victim's RDD. */
    public static Object beginDrop(int hook, Object block) {
        try {
            ThreadState state = ThreadState.currentInTask();
            state.register();
            Frame frame = new Frame(state, HookTable.at(hook));
            frame.rdd = rddBits(block, 0);
            state.hot(frame.hook.tag | frame.rdd);
            return frame;
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    private static long rddBits(Object block, long otherwise) {
        if (!(block instanceof RDDBlockId)) {
            return otherwise;
        }
        RDDBlockId id = (RDDBlockId) block;
        return Words.rdd(id.rddId(), id.splitIndex());
    }

    private static void stored(Object id, Object entry) {
        if (!ExecutorIdentity.describe()) {
            return;
        }
        ThreadState state = ThreadState.current();
        BlockRecord record = new BlockRecord((BlockId) id, (MemoryEntry<?>) entry, state.task);
        BlockRecord before = ALIVE.put(record.id, record);
        if (before != null) {
            before.forget();
        }
        record.tellStored(state, false);
    }

    private static void removed(String id) {
        BlockRecord record = ALIVE.remove(id);
        if (record != null) {
            record.tellRemoved(ThreadState.current());
        }
    }

    /** Resident bytes of the blocks outside of the heap. */
    static long offHeapResident() {
        long sum = 0;
        for (BlockRecord record : ALIVE.values()) {
            sum += record.offHeapResident();
        }
        return sum;
    }

    /** Reports every block, for a resync. */
    static void tellAgain(Pace pace) throws InterruptedException {
        ThreadState teller = ThreadState.current();
        for (BlockRecord record : ALIVE.values()) {
            record.tellStored(teller, true);
            pace.step();
        }
    }

    /** After a collection: reports the blocks whose bytes have moved. */
    static void tellMoved(Pace pace) throws InterruptedException {
        ThreadState teller = ThreadState.current();
        for (BlockRecord record : ALIVE.values()) {
            record.tellMoved(teller);
            pace.step();
        }
    }

    /**
     * Compares with the memory store: finds blocks that were stored before the agent was attached, or every change
     * where only the plugin is loaded.
     */
    @SuppressWarnings("unchecked")
    static void scan() {
        try {
            SparkEnv env = SparkEnv.get();
            // Spark 4 has no memory manager yet while a context begins. Its block manager would keep that for good where it is
            // asked for its store then, and the context would fail.
            if (env == null || env.memoryManager() == null || env.blockManager() == null
                    || env.blockManager().blockManagerId() == null || !ExecutorIdentity.describe()) {
                return;
            }
            MemoryStore store = env.blockManager().memoryStore();
            Field field = MemoryStore.class.getDeclaredField("entries");
            field.setAccessible(true);
            LinkedHashMap<Object, Object> entries = (LinkedHashMap<Object, Object>) field.get(store);
            Set<String> seen = new HashSet<>();
            // Iterating does not change the order in which Spark would evict; looking one up would.
            synchronized (entries) {
                for (Map.Entry<Object, Object> entry : entries.entrySet()) {
                    String name = ((BlockId) entry.getKey()).name();
                    seen.add(name);
                    if (!ALIVE.containsKey(name)) {
                        stored(entry.getKey(), entry.getValue());
                    }
                }
                for (String name : ALIVE.keySet()) {
                    if (!seen.contains(name)) {
                        removed(name);
                    }
                }
            }
        } catch (Throwable e) {
            Warnings.once("the memory store could not be read", e);
        }
    }
}
