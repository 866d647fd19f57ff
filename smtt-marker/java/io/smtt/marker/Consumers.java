package io.smtt.marker;

import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;

/**
 * The consumers of a task's execution memory, and the bytes that Spark counts into the task's
 * {@code peakExecutionMemory}.
 *
 * <p>Spark's figure is not the peak of a sum: each sorter and map records its own peak at certain moments, and its user
 * adds that peak to the task's figure once, when it is done. The marker reads the size of the consumer's pages at the
 * same moments. Guarded by its {@link TaskMemory}.
 */
final class Consumers {
    /** Most classes with sums of their own; further classes share one. */
    private static final int CLASSES_MAX = 32;
    private static final String OTHERS = "others";
    private static final String UNKNOWN = "unknown";

    /** All consumers of one class. */
    private static final class Use {
        long instances;
        /** Sum of the peaks of the consumers. */
        long peakBytes;
        /** Bytes that Spark counts. */
        long countedBytes;
        boolean estimated;
    }

    /** One writer, sorter or map. */
    static final class Consumer {
        final String name;
        private final Use use;
        /** A collection of objects: Spark counts its estimate of their size, not the granted bytes. */
        private final boolean objects;
        private long heldBytes;
        private long peakBytes;
        /** Largest size at the moments at which Spark recorded the peak. */
        private long seenBytes;

        private Consumer(String name, Use use) {
            this.name = name;
            this.use = use;
            objects = name.equals("ExternalSorter") || name.equals("ExternalAppendOnlyMap");
        }

        void hold(long bytes) {
            heldBytes += bytes;
            if (heldBytes > peakBytes) {
                use.peakBytes += heldBytes - peakBytes;
                peakBytes = heldBytes;
            }
        }
    }

    /** Held weakly, as Spark's own manager: some consumers are never cleaned up. */
    private final Map<Object, Consumer> all = new WeakHashMap<>();
    private final Map<String, Use> uses = new LinkedHashMap<>();
    /** Consumers whose peak was read since the last addition to the task's figure. */
    private final Set<Consumer> asked = new LinkedHashSet<>();
    /** Part of the task's life was not traced: the bytes that Spark counted are unknown. */
    private boolean incomplete;

    /** The record of a consumer; null stands for an unknown consumer. */
    Consumer of(Object consumer) {
        Object key = consumer == null ? UNKNOWN : consumer;
        Consumer known = all.get(key);
        if (known == null) {
            String name = consumer == null ? UNKNOWN : name(consumer.getClass());
            Use use = use(name);
            use.instances++;
            known = new Consumer(name, use);
            all.put(key, known);
        }
        return known;
    }

    void incomplete() {
        incomplete = true;
    }

    /** Spark updates the recorded peak of a consumer. */
    void seen(Object consumer) {
        Consumer known = all.get(consumer);
        if (known != null) {
            known.seenBytes = Math.max(known.seenBytes, known.heldBytes);
        }
    }

    /** Spark reads the peak of a consumer. */
    void asked(Object consumer) {
        asked.add(of(consumer));
    }

    /** Spark adds to the task's figure: the largest of the peaks that were read. */
    void counted(long bytes) {
        Consumer largest = null;
        for (Consumer consumer : asked) {
            if (largest == null || consumer.objects || consumer.seenBytes > largest.seenBytes) {
                largest = consumer;
            }
        }
        asked.clear();
        if (largest == null) {
            // Not a consumer's memory: a broadcast's hash table adds its estimated size to every task that reads it.
            Use use = use(UNKNOWN);
            use.countedBytes += bytes;
            use.estimated = true;
        } else if (largest.objects) {
            largest.use.countedBytes += bytes;
            largest.use.estimated = true;
        } else {
            largest.use.countedBytes += largest.seenBytes;
        }
    }

    /** Forgets the memory that is held. The counted bytes stay until they are reported. */
    void clear() {
        all.clear();
        asked.clear();
    }

    /** Reports the use of each class of consumers, at the end of the task. */
    void tell(ThreadState state, long taskAttemptId) {
        for (Map.Entry<String, Use> entry : uses.entrySet()) {
            Use use = entry.getValue();
            tell(state, taskAttemptId, use.instances, use.peakBytes, incomplete ? -1 : use.countedBytes, use.estimated, entry.getKey());
        }
    }

    /** Reports that the use of memory is unknown, for a task whose memory was not traced. */
    static void tellUnknown(ThreadState state, long taskAttemptId) {
        tell(state, taskAttemptId, 0, 0, -1, false, UNKNOWN);
    }

    private static void tell(ThreadState state, long taskAttemptId, long instances, long peakBytes, long countedBytes,
            boolean estimated, String name) {
        state.facts.begin(FactForm.CONSUMER_USED)
                .word(Contract.CONSUMER_USED_TASK_ATTEMPT_ID, taskAttemptId)
                .word(Contract.CONSUMER_USED_INSTANCES, instances)
                .word(Contract.CONSUMER_USED_PEAK_BYTES, peakBytes)
                .word(Contract.CONSUMER_USED_COUNTED_BYTES, countedBytes)
                .word(Contract.CONSUMER_USED_FLAGS, estimated ? Contract.CONSUMER_ESTIMATED : 0)
                .text(Contract.CONSUMER_USED_CONSUMER, name).tell();
    }

    private Use use(String name) {
        Use use = uses.get(name);
        return use != null ? use : uses.computeIfAbsent(uses.size() < CLASSES_MAX ? name : OTHERS, any -> new Use());
    }

    private static String name(Class<?> type) {
        String name = type.getName();
        return name.substring(name.lastIndexOf('.') + 1);
    }
}
