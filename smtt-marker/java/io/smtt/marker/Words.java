package io.smtt.marker;

/** The hot word of a thread: activity, access, region, RDD plus one, partition, highest bits first. */
final class Words {
    private Words() {}

    /** Bits that name the RDD and the partition. */
    static final long RDD_BITS = Contract.HOT_FIELD_MASK << Contract.HOT_RDD_SHIFT | Contract.HOT_FIELD_MASK;
    /** The tag of user code. */
    static final long COMPUTE_TAG = tag(Contract.ACTIVITY_COMPUTE, Contract.ACCESS_NONE, Contract.REGION_NONE);

    /** Activity, access and region, without an RDD. */
    static long tag(int activity, int access, int region) {
        return ((long) activity << Contract.HOT_ACTIVITY_SHIFT) | ((long) access << Contract.HOT_ACCESS_SHIFT)
                | ((long) region << Contract.HOT_REGION_SHIFT);
    }

    /** RDD and partition, without a tag. An id that does not fit is stored as the largest value. */
    static long rdd(int rddId, int partition) {
        if (rddId < 0) {
            return 0;
        }
        return (Math.min(rddId + 1L, Contract.HOT_FIELD_MASK) << Contract.HOT_RDD_SHIFT) | (partition & Contract.HOT_FIELD_MASK);
    }

    static int activity(long word) {
        return (int) (word >>> Contract.HOT_ACTIVITY_SHIFT);
    }

    /** RDD id that the bits name, or -1. */
    static int rddId(long word) {
        return (int) ((word >>> Contract.HOT_RDD_SHIFT) & Contract.HOT_FIELD_MASK) - 1;
    }

    /** Partition that the bits name. */
    static long partition(long word) {
        return word & Contract.HOT_FIELD_MASK;
    }
}
