package io.smtt.marker;

import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * The iterator that a loop of the framework pulls: while it produces a record the thread has the pipeline's word,
 * afterwards the loop's own again. Both calls are covered, because filters compute in {@code hasNext}.
 *
 * <p>Compiled against Scala 2.12 it runs on 2.13 too: only erased signatures that both have are used.
 */
final class PullIterator extends AbstractIterator<Object> {
    private final Iterator<?> source;
    private final Pipeline pipeline;
    /** The thread that pulls. It can change: Python's writer thread drains what the task's thread made. */
    private ThreadState state;

    PullIterator(Iterator<?> source, Pipeline pipeline, ThreadState state) {
        this.source = source;
        this.pipeline = pipeline;
        this.state = state;
    }

    @Override
    public boolean hasNext() {
        ThreadState here = here();
        Pipeline outer = here.pipeline;
        boolean outside = here.outside;
        if (outer == pipeline && !outside) {
            return source.hasNext();
        }
        long before = enter(here, outer);
        try {
            return source.hasNext();
        } finally {
            leave(here, outer, outside, before);
        }
    }

    @Override
    public Object next() {
        ThreadState here = here();
        Pipeline outer = here.pipeline;
        boolean outside = here.outside;
        if (outer == pipeline && !outside) {
            return source.next();
        }
        long before = enter(here, outer);
        try {
            return source.next();
        } finally {
            leave(here, outer, outside, before);
        }
    }

    private ThreadState here() {
        ThreadState here = state;
        if (here.thread != Thread.currentThread()) {
            here = ThreadState.current();
            state = here;
        }
        return here;
    }

    private long enter(ThreadState here, Pipeline outer) {
        long slot = here.slot;
        long before = Memory.getLong(slot);
        if (outer != pipeline) {
            // Only where it changes: storing a reference costs the collector's barrier, twice per record.
            here.pipeline = pipeline;
        }
        here.outside = false;
        long word = pipeline.word;
        Memory.putLongOrdered(slot, word);
        Memory.loadFence();
        here.show(word);
        return before;
    }

    private void leave(ThreadState here, Pipeline outer, boolean outside, long before) {
        long slot = here.slot;
        pipeline.word = Memory.getLong(slot);
        if (outer != pipeline) {
            here.pipeline = outer;
        }
        here.outside = outside;
        Memory.putLongOrdered(slot, before);
        here.show(before);
    }
}
