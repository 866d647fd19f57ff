package io.smtt.marker;

import org.apache.spark.InterruptibleIterator;
import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.memory.PartiallyUnrolledIterator;
import scala.collection.Iterator;

/** Hooks around RDDs: the RDD that is materialised, and the interval in which a cached one is read. */
public final class Reads {
    private static final boolean EXACT = Options.exact();

    private Reads() {}

    /** Entry of {@code RDD.iterator}: the first one of a task is the stage's own RDD. */
    public static void first(Object rdd, Object partition) {
        try {
            ThreadState state = ThreadState.current();
            Pipeline pipeline = state.pipeline;
            if (pipeline == null || state.outside || pipeline.rdd != 0) {
                return;
            }
            pipeline.rdd = Words.rdd(((RDD<?>) rdd).id(), ((Partition) partition).index());
            if (Words.activity(state.hot()) == Contract.ACTIVITY_COMPUTE) {
                state.hot(Words.COMPUTE_TAG | pipeline.rdd);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of the shuffle's write where the iterator was asked for before: nothing is left to do. */
    public static void asked() {}

    /** Entry of {@code RDD.getOrCompute}: until it returns, this cached RDD is being computed. */
    public static Object begin(int hook, Object rdd, Object partition) {
        try {
            ThreadState state = ThreadState.currentInTask();
            Frame frame = new Frame(state, HookTable.at(hook));
            frame.subject = rdd;
            frame.rdd = Words.rdd(((RDD<?>) rdd).id(), ((Partition) partition).index());
            state.pipeline = new Pipeline(frame.rdd);
            state.outside = false;
            state.hot(state.pipeline.word);
            return frame;
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    /** Exit of {@code RDD.getOrCompute} with an exception. */
    public static void abort(Object open) {
        if (open == null) {
            return;
        }
        Frame frame = (Frame) open;
        frame.thread.pipeline = frame.pipeline;
        frame.thread.outside = frame.outside;
        frame.thread.hot(frame.before);
    }

    /** Return of {@code RDD.getOrCompute}: the RDD is being read until the block is released. */
    public static Object end(Object result, Object open) {
        if (open == null) {
            return result;
        }
        abort(open);
        try {
            Frame frame = (Frame) open;
            Pipeline outer = frame.pipeline;
            // A block that did not fit is passed through: reading it is computing it.
            boolean uncached = result instanceof InterruptibleIterator
                    && ((InterruptibleIterator<?>) result).delegate() instanceof PartiallyUnrolledIterator;
            if (outer == null || frame.outside || uncached || result == null) {
                return result;
            }
            RDD<?> rdd = (RDD<?>) frame.subject;
            int region = rdd.getStorageLevel().useMemory() ? Contract.REGION_STORAGE : Contract.REGION_NONE;
            long word = Words.tag(Contract.ACTIVITY_CACHE_READ, Contract.ACCESS_READ, region) | frame.rdd;
            // Spark returns a subclass for a block that was there before and the plain class for one just computed.
            if (result.getClass() != InterruptibleIterator.class) {
                tellRead(frame);
            }
            if (EXACT) {
                return new ExactIterator((Iterator<?>) result, word, frame.thread);
            }
            frame.thread.hot(outer.open(frame.rdd, word));
            return result;
        } catch (Throwable e) {
            Scopes.failed(e);
            return result;
        }
    }

    private static void tellRead(Frame frame) {
        Task task = frame.thread.task;
        if (task != null && !task.firstRead(frame.rdd)) {
            return;
        }
        int rdd = ((RDD<?>) frame.subject).id();
        long partition = Words.partition(frame.rdd);
        frame.thread.facts.begin(FactForm.BLOCK_READ)
                .word(Contract.BLOCK_READ_RDD_ID, rdd)
                .word(Contract.BLOCK_READ_PARTITION, partition)
                .word(Contract.BLOCK_READ_TASK_ATTEMPT_ID, task == null ? -1 : task.attemptId)
                .text(Contract.BLOCK_READ_BLOCK_ID, "rdd_" + rdd + "_" + partition).tell();
    }

    /** Entry of {@code BlockManager.releaseLock}: Spark calls it when a cached block's iterator is exhausted. */
    public static void release(Object block) {
        try {
            if (!(block instanceof RDDBlockId)) {
                return;
            }
            ThreadState state = ThreadState.current();
            Pipeline pipeline = state.pipeline;
            if (pipeline == null) {
                return;
            }
            RDDBlockId id = (RDDBlockId) block;
            long word = pipeline.close(Words.rdd(id.rddId(), id.splitIndex()));
            if (word == 0) {
                return;
            }
            if (state.outside) {
                pipeline.word = word;
            } else if (Words.activity(state.hot()) == Contract.ACTIVITY_CACHE_READ) {
                state.hot(word);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }
}
