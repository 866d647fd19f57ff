package io.smtt.marker;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Descriptions of RDDs, stages and jobs on the driver: the latest of each, in the order of their change, bounded.
 *
 * <p>A description is an array of JDK types only, because it crosses processes: sequence number, "rdd", "stage" or "job",
 * then the words and strings of its fact in order.
 */
final class Catalogue {
    static final String RDD = "rdd";
    static final String STAGE = "stage";
    static final String JOB = "job";
    /** Descriptions in one answer. */
    static final int BATCH = 500;

    /** Descriptions that are kept; the oldest go first. */
    private static final int KEPT = 50_000;

    private final LinkedHashMap<String, Object[]> latest = new LinkedHashMap<>();
    private long sequence;

    /** Keeps a description if it is new or different from the one before. */
    synchronized void put(String kind, String key, Object... facts) {
        Object[] before = latest.get(kind + key);
        if (before != null && Arrays.equals(Arrays.copyOfRange(before, 2, before.length), facts)) {
            return;
        }
        Object[] description = new Object[facts.length + 2];
        description[0] = ++sequence;
        description[1] = kind;
        System.arraycopy(facts, 0, description, 2, facts.length);
        latest.remove(kind + key);
        latest.put(kind + key, description);
        if (latest.size() > KEPT) {
            latest.remove(latest.keySet().iterator().next());
        }
    }

    /** Descriptions that changed after that number, oldest first, at most one batch. */
    synchronized Object[] since(long seen) {
        if (seen >= sequence) {
            return new Object[0];
        }
        List<Object[]> answer = new ArrayList<>();
        for (Map.Entry<String, Object[]> entry : latest.entrySet()) {
            if ((Long) entry.getValue()[0] > seen) {
                answer.add(entry.getValue());
                if (answer.size() == BATCH) {
                    break;
                }
            }
        }
        return answer.toArray();
    }
}
