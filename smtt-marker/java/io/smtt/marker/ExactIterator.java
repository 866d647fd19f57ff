package io.smtt.marker;

import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/** Exact mode (agent option {@code exact=true}): tags a cached block's read per record, at about 5 ns each. */
final class ExactIterator extends AbstractIterator<Object> {
    private final Iterator<?> source;
    private final long word;
    private ThreadState state;

    ExactIterator(Iterator<?> source, long word, ThreadState state) {
        this.source = source;
        this.word = word;
        this.state = state;
    }

    @Override
    public boolean hasNext() {
        ThreadState here = here();
        long before = here.hot();
        here.hot(word);
        try {
            return source.hasNext();
        } finally {
            Memory.putLongOrdered(here.slot, before);
            here.show(before);
        }
    }

    @Override
    public Object next() {
        ThreadState here = here();
        long before = here.hot();
        here.hot(word);
        try {
            return source.next();
        } finally {
            Memory.putLongOrdered(here.slot, before);
            here.show(before);
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
}
