package io.smtt.marker;

import java.nio.ByteBuffer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.SerializedMemoryEntry;

/** One block in memory. Keeps no bytes alive: arrays are held weakly, off-heap memory by its address only. */
final class BlockRecord {
    private static final long ON_HEAP = 1;
    private static final long SERIALIZED = 2;
    private static final long WITHOUT_TASK = 4;
    private static final long TOLD_AGAIN = 8;
    /** Ranges that are told of one block: the daemon keeps no more. */
    private static final int RANGES_MAX = 4096;

    final String id;
    private final long rdd;
    private final long partition;
    /** Spark's own figure, estimated by Spark for objects: the sum over blocks is the REST API's memoryUsed. */
    private final long sizeBytes;
    private final long flags;
    private final long taskAttemptId;
    /** Ranges that it has, also those beyond {@link #RANGES_MAX}. */
    private final int rangeTotal;
    private final HeapArray[] arrays;
    /** Distance of a range from its array's first element; unused off heap. */
    private final long[] offsets;
    private final long[] addresses;
    private final long[] lengths;
    private boolean removed;

    /** A block whose addresses on the heap are not known before they are told. */
    BlockRecord(BlockId block, MemoryEntry<?> entry, Task task) {
        id = block.name();
        rdd = block instanceof RDDBlockId ? ((RDDBlockId) block).rddId() : -1;
        partition = block instanceof RDDBlockId ? ((RDDBlockId) block).splitIndex() : -1;
        sizeBytes = entry.size();
        taskAttemptId = task == null ? -1 : task.attemptId;
        flags = (entry.memoryMode() == MemoryMode.ON_HEAP ? ON_HEAP : 0)
                | (entry instanceof SerializedMemoryEntry ? SERIALIZED : 0)
                | (task == null ? WITHOUT_TASK : 0);
        ByteBuffer[] chunks = entry instanceof SerializedMemoryEntry ? ((SerializedMemoryEntry<?>) entry).buffer().chunks() : new ByteBuffer[0];
        byte[][] columns = entry instanceof DeserializedMemoryEntry
                ? Columns.of(((DeserializedMemoryEntry<?>) entry).value()) : new byte[0][];
        rangeTotal = chunks.length + columns.length;
        int count = Math.min(rangeTotal, RANGES_MAX);
        arrays = new HeapArray[count];
        offsets = new long[count];
        addresses = new long[count];
        lengths = new long[count];
        for (int i = 0; i < count && columns.length == 0; i++) {
            ByteBuffer chunk = chunks[i];
            lengths[i] = chunk.remaining();
            if (chunk.isDirect()) {
                long start = Native.bufferAddress(chunk);
                addresses[i] = start == 0 ? 0 : start + chunk.position();
            } else if (chunk.hasArray()) {
                arrays[i] = new HeapArray(chunk.array());
                offsets[i] = chunk.arrayOffset() + chunk.position();
            }
        }
        for (int i = 0; i < count && columns.length > 0; i++) {
            lengths[i] = columns[i].length;
            arrays[i] = new HeapArray(columns[i]);
        }
    }

    /** Looks up where the arrays are; whether any is elsewhere than it was. */
    private boolean locate() {
        boolean moved = false;
        for (int i = 0; i < arrays.length; i++) {
            if (arrays[i] == null) {
                continue;
            }
            long start = arrays[i].address();
            if (start == 0 && addresses[i] != 0) {
                // Spark holds it no more; its removal is on the way.
                continue;
            }
            long now = start == 0 ? 0 : start + offsets[i];
            moved |= now != addresses[i];
            addresses[i] = now;
        }
        return moved;
    }

    /** It is no longer wanted. */
    synchronized void forget() {
        removed = true;
        for (HeapArray array : arrays) {
            if (array != null) {
                array.forget();
            }
        }
    }

    /** The record is where {@link #tellMoved} finds it: a collection after this one looked is not missed. */
    synchronized void tellStored(ThreadState teller, boolean again) {
        if (!removed) {
            locate();
            tell(teller, FactForm.BLOCK_STORED, flags | (again ? TOLD_AGAIN : 0));
        }
    }

    synchronized void tellRemoved(ThreadState teller) {
        forget();
        teller.facts.begin(FactForm.BLOCK_REMOVED).word(rdd).word(partition).text(id, 300)
                .text(Integer.toString(Words.activity(teller.hot())), 3).tell();
    }

    /** Tells the new addresses if the collector moved an array. */
    synchronized void tellMoved(ThreadState teller) {
        if (!removed && locate()) {
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
                    .word(rangeTotal).word(first).word(count);
            for (int i = first; i < first + count; i++) {
                fact.word(addresses[i]).word(lengths[i]);
            }
            fact.text(id, 300).tell();
            if (form == FactForm.BLOCK_MOVED) {
                Addresses.countMoved();
            }
            first += count;
        } while (first < total);
    }
}
