package io.smtt.marker;

import java.nio.ByteBuffer;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.storage.ShuffleBlockFetcherIterator;
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
        long startNs = System.nanoTime();
        Object result = null;
        try {
            result = results.take();
            return result;
        } finally {
            Context.exit(state, before);
            fetched(state, startNs, before, result);
        }
    }

    /** Waiting for a shuffle block, from Spark 4.3 on. */
    public static Object take(LinkedBlockingDeque<?> results) throws InterruptedException {
        ThreadState state = Context.thread();
        long before = Context.enter(state, FETCH);
        long startNs = System.nanoTime();
        Object result = null;
        try {
            result = results.take();
            return result;
        } finally {
            Context.exit(state, before);
            fetched(state, startNs, before, result);
        }
    }

    /** Reports a long wait for a block, with the host that sent it. */
    private static void fetched(ThreadState state, long startNs, long before, Object result) {
        if (Scopes.isShort(startNs)) {
            return;
        }
        try {
            String name = "ShuffleBlockFetcherIterator.next";
            if (result instanceof ShuffleBlockFetcherIterator.SuccessFetchResult) {
                name += " from " + ((ShuffleBlockFetcherIterator.SuccessFetchResult) result).address().hostPort();
            }
            told(state, Contract.ACTIVITY_SHUFFLE_FETCH, startNs, before, name);
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    private static void told(ThreadState state, int activity, long startNs, long before, String name) {
        Task task = state.task;
        Scopes.span(state, task == null ? -1 : task.attemptId, activity, startNs, Words.rddId(before), name);
    }

    /** Deserialising the RDD and the closure of a task. */
    public static Object deserialize(SerializerInstance serializer, ByteBuffer bytes, ClassLoader loader, ClassTag<Object> type) {
        ThreadState state = Context.thread();
        long before = Context.enter(state, DESERIALIZE);
        long startNs = System.nanoTime();
        try {
            return serializer.deserialize(bytes, loader, type);
        } finally {
            Context.exit(state, before);
            try {
                told(state, Contract.ACTIVITY_TASK_DESERIALIZE, startNs, before, "Task.runTask.deserialize");
            } catch (Throwable e) {
                Scopes.failed(e);
            }
        }
    }
}
