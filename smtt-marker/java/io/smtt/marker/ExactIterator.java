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
        long slot = slot();
        long before = Memory.getLong(slot);
        Memory.putLongOrdered(slot, word);
        Memory.loadFence();
        try {
            return source.hasNext();
        } finally {
            Memory.putLongOrdered(slot, before);
        }
    }

    @Override
    public Object next() {
        long slot = slot();
        long before = Memory.getLong(slot);
        Memory.putLongOrdered(slot, word);
        Memory.loadFence();
        try {
            return source.next();
        } finally {
            Memory.putLongOrdered(slot, before);
        }
    }

    private long slot() {
        ThreadState here = state;
        if (here.thread != Thread.currentThread()) {
            here = ThreadState.current();
            state = here;
        }
        return here.slot;
    }
}
