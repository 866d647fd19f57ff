package io.smtt.marker;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.SerializedMemoryEntry;

/** One block in memory. Keeps no bytes alive: arrays are held weakly, off-heap memory by its address only. */
final class BlockRecord {
    private static final long ON_HEAP = 1;
    private static final long SERIALIZED = 2;
    private static final long WITHOUT_TASK = 4;
    private static final long TOLD_AGAIN = 8;

    final String id;
    private final long rdd;
    private final long partition;
    /** Spark's own figure, estimated by Spark for objects: the sum over blocks is the REST API's memoryUsed. */
    private final long sizeBytes;
    private final long flags;
    private final long taskAttemptId;
    private final WeakReference<?>[] arrays;
    /** Distance of a range from its array's first element; unused off heap. */
    private final long[] offsets;
    private final long[] addresses;
    private final long[] lengths;
    private boolean removed;

    BlockRecord(BlockId block, MemoryEntry<?> entry, Task task) {
        id = block.name();
        rdd = block instanceof RDDBlockId ? ((RDDBlockId) block).rddId() : -1;
        partition = block instanceof RDDBlockId ? ((RDDBlockId) block).splitIndex() : -1;
        sizeBytes = entry.size();
        taskAttemptId = task == null ? -1 : task.attemptId;
        ByteBuffer[] chunks = entry instanceof SerializedMemoryEntry ? ((SerializedMemoryEntry<?>) entry).buffer().chunks() : new ByteBuffer[0];
        arrays = new WeakReference<?>[chunks.length];
        offsets = new long[chunks.length];
        addresses = new long[chunks.length];
        lengths = new long[chunks.length];
        for (int i = 0; i < chunks.length; i++) {
            ByteBuffer chunk = chunks[i];
            lengths[i] = chunk.remaining();
            if (chunk.isDirect()) {
                long start = Native.bufferAddress(chunk);
                addresses[i] = start == 0 ? 0 : start + chunk.position();
            } else if (chunk.hasArray()) {
                arrays[i] = new WeakReference<>(chunk.array());
                offsets[i] = chunk.arrayOffset() + chunk.position();
                addresses[i] = at(chunk.array(), offsets[i]);
            }
        }
        flags = (entry.memoryMode() == MemoryMode.ON_HEAP ? ON_HEAP : 0)
                | (entry instanceof SerializedMemoryEntry ? SERIALIZED : 0)
                | (task == null ? WITHOUT_TASK : 0);
    }

    private static long at(Object array, long offset) {
        long start = Native.arrayAddress(array);
        return start == 0 ? 0 : start + offset;
    }

    synchronized void tellStored(ThreadState teller, boolean again) {
        if (!removed) {
            tell(teller, FactForm.BLOCK_STORED, flags | (again ? TOLD_AGAIN : 0));
        }
    }

    synchronized void tellRemoved(ThreadState teller) {
        removed = true;
        teller.facts.begin(FactForm.BLOCK_REMOVED).word(rdd).word(partition).text(id, 300)
                .text(Integer.toString(Words.activity(teller.hot())), 3).tell();
    }

    /** Tells the new addresses if the collector moved an array. */
    synchronized void tellMoved(ThreadState teller) {
        boolean moved = false;
        for (int i = 0; i < arrays.length && !removed; i++) {
            Object array = arrays[i] == null ? null : arrays[i].get();
            if (array == null) {
                continue;
            }
            long now = at(array, offsets[i]);
            moved |= now != addresses[i];
            addresses[i] = now;
        }
        if (moved) {
            tell(teller, FactForm.BLOCK_MOVED, flags);
        }
    }

    /** One fact, or several where there are more ranges than fit into one. */
    private void tell(ThreadState teller, FactForm form, long flags) {
        int total = addresses.length;
        int first = 0;
        do {
            int count = Math.min(total - first, FactWriter.RANGES_MAX);
            FactWriter fact = teller.facts.begin(form).word(rdd).word(partition).word(sizeBytes).word(flags).word(taskAttemptId)
                    .word(total).word(first).word(count);
            for (int i = first; i < first + count; i++) {
                fact.word(addresses[i]).word(lengths[i]);
            }
            fact.text(id, 300).tell();
            first += count;
        } while (first < total);
    }
}
