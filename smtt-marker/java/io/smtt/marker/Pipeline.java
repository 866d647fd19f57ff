package io.smtt.marker;

import java.util.ArrayList;

/**
 * The state of one run of user code: the chain of iterators that ends in the RDD which is being materialised.
 *
 * <p>A stage's RDDs run inside one another and are pulled by the framework's loops, so user code is a coroutine: it
 * has a word of its own, which is on the thread only while the framework pulls.
 */
final class Pipeline {
    /** RDD bits of the RDD that is being materialised: the stage's own, or one that is being cached; 0 not yet known. */
    long rdd;
    /** The hot word while the coroutine does not run. */
    long word;

    /** Cached blocks that are being read, oldest first: block's RDD bits and hot word. Empty most of the time. */
    private final ArrayList<long[]> reads = new ArrayList<>(2);

    Pipeline(long rdd) {
        this.rdd = rdd;
        word = Words.COMPUTE_TAG | rdd;
    }

    /** A cached block's iterator was handed out: from now on its RDD is being read. */
    synchronized long open(long block, long readWord) {
        reads.add(new long[] {block, readWord});
        return readWord;
    }

    /** A cached block's iterator is exhausted; the word that holds from now on, or 0 where nothing was open. */
    synchronized long close(long block) {
        for (int i = reads.size() - 1; i >= 0; i--) {
            if (reads.get(i)[0] == block) {
                reads.remove(i);
                return now();
            }
        }
        return 0;
    }

    /** The word of user code now: the read that was opened last, else plain compute. */
    synchronized long now() {
        return reads.isEmpty() ? Words.COMPUTE_TAG | rdd : reads.get(reads.size() - 1)[1];
    }

    /** Splits off the part upstream of here with the reads it has open; this one goes on as plain compute. */
    synchronized Pipeline splitUpstream(long word) {
        Pipeline upstream = new Pipeline(rdd);
        upstream.word = word;
        upstream.reads.addAll(reads);
        reads.clear();
        return upstream;
    }
}
