package io.smtt.marker;

import java.nio.charset.StandardCharsets;
import sun.misc.Unsafe;

/** Writes one fact at a time into its thread's off-heap buffer and calls the entry point that a probe may sit on. */
final class FactWriter {
    /** Longest payload: {@code smtt_common::event::PAYLOAD_MAX}. */
    static final int PAYLOAD_MAX = 2048;
    /** Ranges that always fit beside the words and the longest string of a fact. */
    static final int RANGES_MAX = 96;

    private static final Unsafe U = Memory.UNSAFE;

    private final ThreadState owner;
    private final long buffer;
    private FactForm form;
    private int at;

    FactWriter(ThreadState owner, long buffer) {
        this.owner = owner;
        this.buffer = buffer;
    }

    FactWriter begin(FactForm form) {
        this.form = form;
        at = 0;
        return this;
    }

    FactWriter word(long value) {
        U.putLong(buffer + at, value);
        at += 8;
        return this;
    }

    /** Adds a string of at most {@code maxBytes}, cut at a character boundary. */
    FactWriter text(String value, int maxBytes) {
        byte[] bytes = value == null ? new byte[0] : value.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(bytes.length, Math.min(maxBytes, PAYLOAD_MAX - at - 2));
        while (length > 0 && length < bytes.length && (bytes[length] & 0xc0) == 0x80) {
            length--;
        }
        U.putByte(buffer + at, (byte) length);
        U.putByte(buffer + at + 1, (byte) (length >>> 8));
        at += 2;
        for (int i = 0; i < length; i++) {
            U.putByte(buffer + at + i, bytes[i]);
        }
        at += length;
        return this;
    }

    /** Calls the entry point. The fact is counted first, so what arrives is never more than what was told. */
    void tell() {
        if (form != FactForm.EXECUTOR_DESCRIBED && !ExecutorIdentity.known()) {
            // Nobody could say whose fact it is; what is alive by then is told when the executor is known.
            return;
        }
        owner.countFact();
        if (FactLog.on()) {
            FactLog.write(form, buffer, at);
        }
        switch (form) {
            case EXECUTOR_DESCRIBED: Native.executorDescribed(buffer, at); break;
            case THREAD_REGISTERED: Native.threadRegistered(buffer, at); break;
            case THREAD_GONE: Native.threadGone(buffer, at); break;
            case RDD_DESCRIBED: Native.rddDescribed(buffer, at); break;
            case STAGE_DESCRIBED: Native.stageDescribed(buffer, at); break;
            case TASK_STARTED: Native.taskStarted(buffer, at); break;
            case TASK_ENDED: Native.taskEnded(buffer, at); break;
            case BLOCK_STORED: Native.blockStored(buffer, at); break;
            case BLOCK_READ: Native.blockRead(buffer, at); break;
            case BLOCK_MOVED: Native.blockMoved(buffer, at); break;
            case BLOCK_REMOVED: Native.blockRemoved(buffer, at); break;
            case PAGE_ALLOCATED: Native.pageAllocated(buffer, at); break;
            case PAGE_FREED: Native.pageFreed(buffer, at); break;
            case CONSUMER_USED: Native.consumerUsed(buffer, at); break;
            case SPAN: Native.span(buffer, at); break;
            case PYTHON_WORKER: Native.pythonWorker(buffer, at); break;
            case RESYNC_DONE: Native.resyncDone(buffer, at); break;
            case ADDRESSES_TOLD: Native.addressesTold(buffer, at); break;
            case RESYNC_TOLD: Native.resyncTold(buffer, at); break;
        }
    }
}
