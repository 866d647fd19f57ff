package io.smtt.marker;

import java.nio.ByteBuffer;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.spark.serializer.SerializerInstance;
import scala.reflect.ClassTag;

/** Calls inside Spark's methods that are scopes of their own; each makes the very call that it stands for, once. */
public final class Calls {
    private static final long FETCH = Words.tag(Contract.ACTIVITY_SHUFFLE_FETCH, Contract.ACCESS_NONE, Contract.REGION_NONE);
    private static final long DESERIALIZE = Words.tag(Contract.ACTIVITY_TASK_DESERIALIZE, Contract.ACCESS_NONE, Contract.REGION_NONE);

    private Calls() {}

    /** Waiting for a shuffle block, up to Spark 4.2. */
    public static Object take(LinkedBlockingQueue<?> results) throws InterruptedException {
        ThreadState state = Context.thread();
        long before = Context.enter(state, FETCH);
        try {
            return results.take();
        } finally {
            Context.exit(state, before);
        }
    }

    /** Waiting for a shuffle block, from Spark 4.3 on. */
    public static Object take(LinkedBlockingDeque<?> results) throws InterruptedException {
        ThreadState state = Context.thread();
        long before = Context.enter(state, FETCH);
        try {
            return results.take();
        } finally {
            Context.exit(state, before);
        }
    }

    /** Deserialising the RDD and the closure of a task. */
    public static Object deserialize(SerializerInstance serializer, ByteBuffer bytes, ClassLoader loader, ClassTag<Object> type) {
        ThreadState state = Context.thread();
        long before = Context.enter(state, DESERIALIZE);
        try {
            return serializer.deserialize(bytes, loader, type);
        } finally {
            Context.exit(state, before);
        }
    }
}
