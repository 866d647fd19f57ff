package io.smtt.marker;

import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.memory.DeserializedMemoryEntry;
import org.apache.spark.storage.memory.MemoryEntry;
import org.apache.spark.storage.memory.SerializedMemoryEntry;

/** One block in memory. Keeps no bytes alive: arrays and objects are held weakly, off-heap memory by address only. */
final class BlockRecord {
    final String id;
    private final long rdd;
    private final long partition;
    /** Spark's own size, an estimate for objects: the sum over blocks is the REST API's memoryUsed. */
    private final long sizeBytes;
    private final long flags;
    private final long taskAttemptId;
    /** Number of ranges of the block, including those beyond {@link Contract#RANGES_PER_BLOCK}. */
    private final int rangeTotal;
    /** Ranges that are elements of a block of objects, each one whole object without the objects that it refers to. */
    private final int sampled;
    private final HeapHandle[] handles;
    /** Distance of a range from the address of its handle; unused off heap. */
    private final long[] offsets;
    private final long[] addresses;
    private final long[] lengths;
    private boolean removed;

    /** A block whose addresses on the heap are looked up when they are reported. */
    BlockRecord(BlockId block, MemoryEntry<?> entry, Task task) {
        id = block.name();
        rdd = block instanceof RDDBlockId ? ((RDDBlockId) block).rddId() : -1;
        partition = block instanceof RDDBlockId ? ((RDDBlockId) block).splitIndex() : -1;
        sizeBytes = entry.size();
        taskAttemptId = task == null ? -1 : task.attemptId;
        Object value = entry instanceof DeserializedMemoryEntry ? ((DeserializedMemoryEntry<?>) entry).value() : null;
        byte[][] columns = Columns.of(value);
        boolean array = value != null && value.getClass().isArray() && value.getClass().getComponentType().isPrimitive();
        boolean objects = value instanceof Object[] && columns.length == 0;
        Object[] sample = objects ? Samples.of((Object[]) value) : new Object[0];
        sampled = sample.length;
        flags = (entry.memoryMode() == MemoryMode.ON_HEAP ? Contract.BLOCK_ON_HEAP : 0)
                | (entry instanceof SerializedMemoryEntry ? Contract.BLOCK_SERIALIZED : 0)
                | (task == null ? Contract.BLOCK_WITHOUT_TASK : 0)
                | (objects ? Contract.BLOCK_SAMPLED : 0)
                | (array ? Contract.BLOCK_ARRAY : 0);
        ByteBuffer[] chunks = entry instanceof SerializedMemoryEntry ? ((SerializedMemoryEntry<?>) entry).buffer().chunks() : new ByteBuffer[0];
        rangeTotal = chunks.length + columns.length + sample.length + (array ? 1 : 0);
        int count = Math.min(rangeTotal, Contract.RANGES_PER_BLOCK);
        handles = new HeapHandle[count];
        offsets = new long[count];
        addresses = new long[count];
        lengths = new long[count];
        if (array) {
            lengths[0] = (long) Array.getLength(value) * ArrayLayout.elementBytes(value.getClass());
            handles[0] = HeapHandle.ofArray(value);
        } else if (sampled > 0) {
            System.arraycopy(Samples.sizes(sample), 0, lengths, 0, count);
            for (int i = 0; i < count; i++) {
                handles[i] = HeapHandle.ofObject(sample[i]);
            }
        } else if (columns.length > 0) {
            for (int i = 0; i < count; i++) {
                lengths[i] = columns[i].length;
                handles[i] = HeapHandle.ofArray(columns[i]);
            }
        } else {
            for (int i = 0; i < count; i++) {
                buffer(i, chunks[i]);
            }
        }
    }

    private void buffer(int i, ByteBuffer chunk) {
        lengths[i] = chunk.remaining();
        if (chunk.isDirect()) {
            long start = Native.bufferAddress(chunk);
            addresses[i] = start == 0 ? 0 : start + chunk.position();
        } else if (chunk.hasArray()) {
            handles[i] = HeapHandle.ofArray(chunk.array());
            offsets[i] = chunk.arrayOffset() + chunk.position();
        }
    }

    /** Looks up all addresses; returns whether any has changed. */
    private boolean locate() {
        boolean moved = false;
        for (int i = 0; i < handles.length; i++) {
            if (handles[i] == null) {
                continue;
            }
            long start = handles[i].address();
            if (start == 0 && addresses[i] != 0 && handles[i].canBeAsked()) {
                // Spark has dropped it; its removal follows.
                continue;
            }
            long now = start == 0 ? 0 : start + offsets[i];
            moved |= now != addresses[i];
            addresses[i] = now;
        }
        return moved;
    }

    /** Releases the record's handles. */
    synchronized void forget() {
        if (removed) {
            return;
        }
        removed = true;
        for (HeapHandle handle : handles) {
            if (handle != null) {
                handle.forget();
            }
        }
        Samples.giveBack(sampled);
    }

    /** Reports the block, after {@link #tellMoved} can find it: a later collection then reports the new address. */
    synchronized void tellStored(ThreadState teller, boolean again) {
        if (removed) {
            return;
        }
        locate();
        int first = 0;
        do {
            int count = Math.min(addresses.length - first, Contract.RANGES_PER_FACT);
            FactWriter fact = teller.facts.begin(FactForm.BLOCK_STORED)
                    .word(Contract.BLOCK_STORED_RDD_ID, rdd)
                    .word(Contract.BLOCK_STORED_PARTITION, partition)
                    .word(Contract.BLOCK_STORED_SIZE_BYTES, sizeBytes)
                    .word(Contract.BLOCK_STORED_FLAGS, flags | (again ? Contract.REPORTED_AGAIN : 0))
                    .word(Contract.BLOCK_STORED_TASK_ATTEMPT_ID, taskAttemptId)
                    .word(Contract.BLOCK_STORED_RANGE_TOTAL, rangeTotal)
                    .word(Contract.BLOCK_STORED_RANGE_FIRST, first)
                    .word(Contract.BLOCK_STORED_RANGE_COUNT, count);
            ranges(fact, first, count).text(Contract.BLOCK_STORED_BLOCK_ID, id).tell();
            first += count;
        } while (first < addresses.length);
    }

    /** Resident bytes of the block where it is outside of the heap. */
    long offHeapResident() {
        long[] at;
        synchronized (this) {
            if (removed || (flags & Contract.BLOCK_ON_HEAP) != 0) {
                return 0;
            }
            at = addresses.clone();
            for (int i = 0; i < at.length; i++) {
                at[i] = handles[i] == null ? at[i] : 0;
            }
        }
        // Not under the lock, for which tasks would wait. Memory that is freed meanwhile is not resident.
        long sum = 0;
        for (int i = 0; i < at.length; i++) {
            sum += at[i] == 0 ? 0 : Math.max(0, Native.residentBytes(at[i], lengths[i]));
        }
        return sum;
    }

    synchronized void tellRemoved(ThreadState teller) {
        forget();
        teller.facts.begin(FactForm.BLOCK_REMOVED)
                .word(Contract.BLOCK_REMOVED_RDD_ID, rdd)
                .word(Contract.BLOCK_REMOVED_PARTITION, partition)
                .text(Contract.BLOCK_REMOVED_BLOCK_ID, id)
                .text(Contract.BLOCK_REMOVED_ACTIVITY, Integer.toString(Words.activity(teller.hot()))).tell();
    }

    /** Reports the new addresses if the collector moved anything. */
    synchronized void tellMoved(ThreadState teller) {
        if (removed || !locate()) {
            return;
        }
        int first = 0;
        do {
            int count = Math.min(addresses.length - first, Contract.RANGES_PER_FACT);
            FactWriter fact = teller.facts.begin(FactForm.BLOCK_MOVED)
                    .word(Contract.BLOCK_MOVED_RDD_ID, rdd)
                    .word(Contract.BLOCK_MOVED_PARTITION, partition)
                    .word(Contract.BLOCK_MOVED_SIZE_BYTES, sizeBytes)
                    .word(Contract.BLOCK_MOVED_FLAGS, flags)
                    .word(Contract.BLOCK_MOVED_TASK_ATTEMPT_ID, taskAttemptId)
                    .word(Contract.BLOCK_MOVED_RANGE_TOTAL, rangeTotal)
                    .word(Contract.BLOCK_MOVED_RANGE_FIRST, first)
                    .word(Contract.BLOCK_MOVED_RANGE_COUNT, count);
            ranges(fact, first, count).text(Contract.BLOCK_MOVED_BLOCK_ID, id).tell();
            Addresses.countMoved();
            first += count;
        } while (first < addresses.length);
    }

    private FactWriter ranges(FactWriter fact, int first, int count) {
        for (int i = first; i < first + count; i++) {
            fact.range(addresses[i], lengths[i]);
        }
        return fact;
    }
}
