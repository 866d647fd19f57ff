package io.smtt.marker;

import org.apache.spark.network.buffer.ManagedBuffer;
import org.apache.spark.network.shuffle.BlockFetchingListener;

/**
 * One request for shuffle blocks, as the listener of its blocks: counts what arrives, then calls Spark's own listener.
 *
 * <p>It counts before Spark learns of the block, so the last request of a task is reported before the task's end.
 */
final class Fetch implements BlockFetchingListener {
    final String address;
    final String executorId;
    final int blocks;
    final long startNs = System.nanoTime();

    private final Fetches of;
    private final BlockFetchingListener listener;
    private int arrived;
    private int failed;
    private long bytes;
    private boolean ended;

    Fetch(Fetches of, String address, String executorId, int blocks, BlockFetchingListener listener) {
        this.of = of;
        this.address = address;
        this.executorId = executorId;
        this.blocks = blocks;
        this.listener = listener;
    }

    @Override
    public void onBlockFetchSuccess(String block, ManagedBuffer data) {
        note(data, true);
        listener.onBlockFetchSuccess(block, data);
    }

    @Override
    public void onBlockFetchFailure(String block, Throwable error) {
        note(null, false);
        listener.onBlockFetchFailure(block, error);
    }

    private void note(ManagedBuffer data, boolean success) {
        try {
            if (count(success && data != null ? data.size() : 0, success)) {
                of.ended(this);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Counts a block; whether it is the last one of the request. */
    private synchronized boolean count(long size, boolean success) {
        if (ended) {
            return false;
        }
        if (success) {
            arrived++;
            bytes += size;
        } else {
            failed++;
        }
        ended = arrived + failed >= blocks;
        return ended;
    }

    /** Ends the request with what has arrived; false where it has ended already. */
    synchronized boolean close() {
        boolean open = !ended;
        ended = true;
        return open;
    }

    synchronized int arrived() {
        return arrived;
    }

    synchronized int failed() {
        return failed;
    }

    synchronized long bytes() {
        return bytes;
    }
}
