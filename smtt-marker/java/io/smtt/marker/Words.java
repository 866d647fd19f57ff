package io.smtt.marker;

/** The hot word of a thread, as {@code smtt_common::context::Hot} lays it out. */
final class Words {
    private Words() {}

    static final int IDLE = 0;
    static final int COMPUTE = 1;
    static final int SHUFFLE_WRITE = 2;
    static final int SORT = 3;
    static final int SPILL = 4;
    static final int MERGE = 5;
    static final int SHUFFLE_FETCH = 6;
    static final int TASK_DESERIALIZE = 7;
    static final int CACHE_READ = 8;
    static final int CACHE_WRITE = 9;
    static final int RESULT_SERIALIZE = 10;
    static final int BROADCAST = 11;
    static final int EVICT = 12;
    static final int PYTHON_EXCHANGE = 13;
    static final int PYTHON_WORKER = 14;
    static final int INSERT = 15;
    static final int HASH_GROW = 16;

    static final int NO_ACCESS = 0;
    static final int READ = 1;
    static final int WRITE = 2;

    static final int NO_REGION = 0;
    static final int STORAGE = 1;
    static final int EXECUTION = 2;

    /** Bits that name the RDD and the partition. */
    static final long RDD_BITS = 0xffff_ffff_ffffL;
    /** The tag of user code. */
    static final long COMPUTE_TAG = tag(COMPUTE, NO_ACCESS, NO_REGION);

    private static final long FIELD = 0xff_ffffL;

    /** Activity, access and region, without an RDD. */
    static long tag(int activity, int access, int region) {
        return ((long) activity << 56) | ((long) access << 54) | ((long) region << 52);
    }

    /** RDD and partition, without a tag. An id that does not fit is stored as the largest value. */
    static long rdd(int rddId, int partition) {
        if (rddId < 0) {
            return 0;
        }
        return (Math.min(rddId + 1L, FIELD) << 24) | (partition & FIELD);
    }

    static int activity(long word) {
        return (int) (word >>> 56);
    }

    /** RDD id that the bits name, or -1. */
    static int rddId(long word) {
        return (int) ((word >>> 24) & FIELD) - 1;
    }
}
