package io.smtt.marker;

import java.util.HashSet;
import java.util.Set;
import org.apache.spark.network.shuffle.BlockFetchingListener;
import org.apache.spark.network.shuffle.BlockStoreClient;
import org.apache.spark.network.shuffle.DownloadFileManager;

/**
 * The requests of one task for shuffle blocks of other executors. Each is reported when it ends, by the thread that
 * received its last block; the task's end reports those that are still open, and the sum of those beyond the bounds.
 */
public final class Fetches {
    /** Most requests of one task that are reported one by one. */
    static final int TOLD_MAX = 1000;
    /** Most requests of all tasks that are reported one by one in a second: few beside the facts that an executor may send. */
    static final int PER_SECOND_MAX = 4000;

    private static final long SECOND_NS = 1_000_000_000;
    private static long secondBegan = System.nanoTime();
    private static int toldInSecond;
    /** No request is watched any more: the native library is of an earlier marker. */
    private static volatile boolean off;

    private final long taskAttemptId;
    private final Set<Fetch> open = new HashSet<>();
    private boolean ended;
    private int told;
    private int leftOut;
    private long leftOutBlocks;
    private long leftOutArrived;
    private long leftOutFailed;
    private long leftOutBytes;

    Fetches(long taskAttemptId) {
        this.taskAttemptId = taskAttemptId;
    }

    /** The call that sends a request: makes it, with a listener that counts the blocks in front of Spark's own. */
    public static void request(BlockStoreClient client, String host, int port, String executorId, String[] blocks,
            BlockFetchingListener listener, DownloadFileManager files) {
        client.fetchBlocks(host, port, executorId, blocks, watched(host, port, executorId, blocks, listener), files);
    }

    private static BlockFetchingListener watched(String host, int port, String executorId, String[] blocks, BlockFetchingListener listener) {
        try {
            Task task = off ? null : ThreadState.currentInTask().task;
            return task == null ? listener : task.fetches.begin(host + ":" + port, executorId, blocks.length, listener);
        } catch (Throwable e) {
            Scopes.failed(e);
            return listener;
        }
    }

    synchronized BlockFetchingListener begin(String address, String executorId, int blocks, BlockFetchingListener listener) {
        if (ended || blocks == 0) {
            return listener;
        }
        Fetch fetch = new Fetch(this, address, executorId, blocks, listener);
        open.add(fetch);
        return fetch;
    }

    /** The last block of a request has arrived or failed. */
    synchronized void ended(Fetch fetch) {
        if (open.remove(fetch)) {
            tellOrSum(ThreadState.current(), fetch);
        }
    }

    /** The task ends: what arrives later is not part of it. */
    synchronized void end(ThreadState teller) {
        if (ended) {
            return;
        }
        ended = true;
        for (Fetch fetch : open) {
            fetch.close();
            tellOrSum(teller, fetch);
        }
        open.clear();
        if (leftOut > 0) {
            tell(teller, 0, 0, leftOut, leftOutBlocks, leftOutArrived, leftOutFailed, leftOutBytes, "", "");
        }
    }

    private void tellOrSum(ThreadState teller, Fetch fetch) {
        long now = System.nanoTime();
        if (told < TOLD_MAX && mayTell(now)) {
            told++;
            tell(teller, fetch.startNs, now - fetch.startNs, 1, fetch.blocks, fetch.arrived(), fetch.failed(), fetch.bytes(),
                    fetch.address, fetch.executorId);
        } else {
            leftOut++;
            leftOutBlocks += fetch.blocks;
            leftOutArrived += fetch.arrived();
            leftOutFailed += fetch.failed();
            leftOutBytes += fetch.bytes();
        }
    }

    /** Whether this second has room for one more request. */
    private static boolean mayTell(long now) {
        synchronized (Fetches.class) {
            if (now - secondBegan >= SECOND_NS) {
                secondBegan = now;
                toldInSecond = 0;
            }
            return toldInSecond++ < PER_SECOND_MAX;
        }
    }

    private void tell(ThreadState teller, long startNs, long durationNs, int requests, long blocks, long arrived, long failed,
            long bytes, String address, String executorId) {
        try {
            teller.facts.begin(FactForm.SHUFFLE_FETCHED)
                    .word(Contract.SHUFFLE_FETCHED_TASK_ATTEMPT_ID, taskAttemptId)
                    .word(Contract.SHUFFLE_FETCHED_START_MONOTONIC_NS, startNs)
                    .word(Contract.SHUFFLE_FETCHED_DURATION_NS, durationNs)
                    .word(Contract.SHUFFLE_FETCHED_REQUESTS, requests)
                    .word(Contract.SHUFFLE_FETCHED_BLOCKS, blocks)
                    .word(Contract.SHUFFLE_FETCHED_ARRIVED_BLOCKS, arrived)
                    .word(Contract.SHUFFLE_FETCHED_FAILED_BLOCKS, failed)
                    .word(Contract.SHUFFLE_FETCHED_ARRIVED_BYTES, bytes)
                    .text(Contract.SHUFFLE_FETCHED_ADDRESS, address)
                    .text(Contract.SHUFFLE_FETCHED_EXECUTOR_ID, executorId).tell();
        } catch (LinkageError e) {
            off = true;
            Warnings.once("requests for shuffle blocks are not reported", e);
        } catch (Throwable e) {
            // The task's end is reported all the same.
            Scopes.failed(e);
        }
    }
}
