package io.smtt.marker;

import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;

/**
 * Who holds a task's execution memory, and what of it Spark counts into the task's {@code peakExecutionMemory}.
 *
 * <p>Spark's figure is no peak of a sum: each sorter and map remembers the most that it held at the moments at which it
 * looks, and what uses it adds that once, when it is done. The marker looks at its own pages at the same moments.
 * Guarded by the {@link TaskMemory} that it belongs to.
 */
final class Consumers {
    /** Classes with sums of their own; more fall together. */
    private static final int CLASSES_MAX = 32;
    private static final String OTHERS = "others";
    private static final String UNKNOWN = "unknown";

    /** All consumers of one class. */
    private static final class Use {
        long instances;
        /** Sum of the most that each of them held. */
        long peakBytes;
        /** What Spark counts of it. */
        long countedBytes;
        boolean estimated;
    }

    /** One writer, sorter or map. */
    static final class Consumer {
        final String name;
        private final Use use;
        /** A collection of objects: Spark counts its estimate of their size, not what was granted. */
        private final boolean objects;
        private long heldBytes;
        private long peakBytes;
        /** The most that it held when Spark looked. */
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

    /** Weakly, as Spark's own manager is held: some are never cleaned up. */
    private final Map<Object, Consumer> all = new WeakHashMap<>();
    private final Map<String, Use> uses = new LinkedHashMap<>();
    /** Those that were asked for their peak since the last one was counted. */
    private final Set<Consumer> asked = new LinkedHashSet<>();
    /** Part of the task's life was not seen: nothing can be said about what Spark counted. */
    private boolean incomplete;

    /** The record of a consumer; null is one that nobody could name. */
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

    /** Spark compares what a consumer holds now with the most it ever saw. */
    void seen(Object consumer) {
        Consumer known = all.get(consumer);
        if (known != null) {
            known.seenBytes = Math.max(known.seenBytes, known.heldBytes);
        }
    }

    /** Somebody asks a consumer for its peak. */
    void asked(Object consumer) {
        asked.add(of(consumer));
    }

    /** Spark adds to the task's figure: of those that were asked for their peak it takes the largest. */
    void counted(long bytes) {
        Consumer largest = null;
        for (Consumer consumer : asked) {
            if (largest == null || consumer.objects || consumer.seenBytes > largest.seenBytes) {
                largest = consumer;
            }
        }
        asked.clear();
        if (largest == null) {
            // Not what a consumer held: a broadcast's hash table adds its estimated size to every task that reads it.
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

    /** Nothing is held any more. What was counted stays until it is told. */
    void clear() {
        all.clear();
        asked.clear();
    }

    /** Tells what each class of consumers used, at the end of the task. */
    void tell(ThreadState state, long taskAttemptId) {
        for (Map.Entry<String, Use> entry : uses.entrySet()) {
            Use use = entry.getValue();
            tell(state, taskAttemptId, use.instances, use.peakBytes, incomplete ? -1 : use.countedBytes, use.estimated, entry.getKey());
        }
    }

    /** The same of a task whose memory nobody has seen. */
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
