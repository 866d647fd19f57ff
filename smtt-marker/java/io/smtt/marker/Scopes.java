package io.smtt.marker;

import scala.collection.Iterator;

/**
 * Functions of the framework as scopes: the thread's word names the running one, and a long one is reported as a span.
 */
public final class Scopes {
    /** Shorter spans are not reported, which bounds their number. */
    private static final long SPAN_MIN_NS = 1_000_000;

    private Scopes() {}

    /** Entry of a scope. */
    public static Object begin(int hook) {
        try {
            ThreadState state = ThreadState.currentInTask();
            Frame frame = new Frame(state, HookTable.at(hook));
            state.hot(frame.hook.tag | frame.rdd);
            return frame;
        } catch (Throwable e) {
            return failed(e);
        }
    }

    /** Exit of a scope, by return or by exception. */
    public static void end(Object open) {
        if (open == null) {
            return;
        }
        try {
            Frame frame = (Frame) open;
            frame.thread.hot(frame.before);
            span(frame);
        } catch (Throwable e) {
            failed(e);
        }
    }

    /** Entry of a scope that pulls user code: the pipeline is suspended until {@link #wrap}'s iterator is pulled. */
    public static Object beginPull(int hook) {
        try {
            ThreadState state = ThreadState.currentInTask();
            Frame frame = new Frame(state, HookTable.at(hook));
            pullFrom(frame);
            state.hot(frame.hook.tag | frame.rdd);
            return frame;
        } catch (Throwable e) {
            return failed(e);
        }
    }

    static void pullFrom(Frame frame) {
        if (frame.pipeline != null && !frame.outside) {
            frame.pipeline.word = frame.before;
            frame.thread.outside = true;
            frame.pulls = true;
        }
    }

    /** The iterator argument of such a scope. */
    public static Object wrap(Object iterator, Object open) {
        try {
            Frame frame = (Frame) open;
            if (frame == null || !frame.pulls || iterator == null || iterator instanceof PullIterator) {
                return iterator;
            }
            return new PullIterator((Iterator<?>) iterator, frame.pipeline, frame.thread);
        } catch (Throwable e) {
            failed(e);
            return iterator;
        }
    }

    /** Exit of a pulling scope. The pipeline's word may have changed meanwhile: a cached input may be exhausted. */
    public static void endPull(Object open) {
        if (open == null) {
            return;
        }
        try {
            Frame frame = (Frame) open;
            frame.thread.pipeline = frame.pipeline;
            frame.thread.outside = frame.outside;
            frame.thread.hot(frame.pulls ? frame.pipeline.word : frame.before);
            span(frame);
        } catch (Throwable e) {
            failed(e);
        }
    }

    static void span(Frame frame) {
        int activity = Words.activity(frame.hook.tag);
        // A function of the same activity that called this one has a span, and this one's time is in it.
        if (frame.hook.span != null && Words.activity(frame.before) != activity) {
            Task task = frame.thread.task;
            span(frame.thread, task == null ? -1 : task.attemptId, activity, frame.startNs, Words.rddId(frame.rdd),
                    frame.hook.span);
        }
    }

    /** Whether a span that ends now is too short to be reported. */
    static boolean isShort(long startNs) {
        return System.nanoTime() - startNs < SPAN_MIN_NS;
    }

    /** Reports a span that ends now, if it was long enough. */
    static void span(ThreadState state, long taskAttemptId, int activity, long startNs, int rddId, String name) {
        long duration = System.nanoTime() - startNs;
        if (duration >= SPAN_MIN_NS) {
            state.facts.begin(FactForm.SPAN)
                    .word(Contract.SPAN_TASK_ATTEMPT_ID, taskAttemptId)
                    .word(Contract.SPAN_ACTIVITY, activity)
                    .word(Contract.SPAN_START_MONOTONIC_NS, startNs)
                    .word(Contract.SPAN_DURATION_NS, duration)
                    .word(Contract.SPAN_RDD_ID, rddId)
                    .text(Contract.SPAN_NAME, name).tell();
        }
    }

    static Object failed(Throwable e) {
        Warnings.once("a hook failed", e);
        return null;
    }
}
