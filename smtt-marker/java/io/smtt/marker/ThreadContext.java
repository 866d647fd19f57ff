package io.smtt.marker;

import java.nio.charset.StandardCharsets;

/**
 * What one thread does, in the form in which OpenTelemetry's profilers read it from outside (OTEP 4947): the thread's
 * variable {@code otel_thread_ctx_v1} points to a record of a few texts, or is null while the thread has no Spark work.
 *
 * <p>A record is made when its hot word is shown first in a task. A change of context is then one look-up by the word and
 * one store of a pointer. A reader has stopped the thread, so the order of the stores is all that matters.
 */
final class ThreadContext {
    /** Records of a thread at a time; a power of two. */
    static final int RECORDS = 64;
    /** Places in which a word may have its record: words that alternate must not take each other's. */
    private static final int NEIGHBOURS = 8;
    /** Offsets in a record: whether it is valid, the size of its attributes, and the attributes. */
    static final int VALID = 24;
    static final int SIZE = 26;
    static final int ATTRIBUTES = 28;
    /** Bytes of a record: the proposal recommends at most 640. */
    static final int RECORD_BYTES = 512;
    /** Bytes of the longest text: an application's id is the only one without a bound of its own. */
    static final int TEXT_MAX = 128;

    /** Names of the attributes. A record names them by their index here. */
    static final String[] KEYS = {
        "spark.application.id", "spark.stage.id", "spark.stage.attempt", "spark.task.attempt_id", "spark.task.partition", "spark.rdd.id",
        "spark.rdd.partition", "spark.activity",
    };

    /** Hot word of each record, 0 where there is none: the word 0 has no record. */
    private final long[] words = new long[RECORDS];
    /** Address of the thread's variable. */
    private final long place;
    private final long records;
    private final ThreadState state;

    /** @param place address of the thread's variable, which no other thread writes */
    ThreadContext(ThreadState state, long place) {
        this.state = state;
        this.place = place;
        records = Memory.allocate(RECORDS * RECORD_BYTES);
        Memory.putLongOrdered(place, 0);
    }

    /** The context of the current thread, or null where nothing is published. */
    static ThreadContext of(ThreadState state) {
        // A virtual thread moves between threads of the system, and the variable belongs to one of those.
        if (!Published.on() || isVirtual(state.thread)) {
            return null;
        }
        long place = Published.place();
        return place == 0 ? null : new ThreadContext(state, place);
    }

    private static boolean isVirtual(Thread thread) {
        for (Class<?> type = thread.getClass(); type != null; type = type.getSuperclass()) {
            if (type.getName().equals("java.lang.BaseVirtualThread")) {
                return true;
            }
        }
        return false;
    }

    /** Shows a hot word. */
    void show(long word) {
        int index = index(word);
        if (words[index] == word) {
            Memory.putLongOrdered(place, word == 0 ? 0 : record(index));
        } else {
            find(word, index);
        }
    }

    /** Forgets the records: their task has ended, or begins. The thread has no context meanwhile. */
    void clear() {
        Memory.putLongOrdered(place, 0);
        java.util.Arrays.fill(words, 0);
    }

    /** Frees the records of a thread that has ended; its variable went with it. */
    void free() {
        Memory.free(records);
    }

    /** The place of a word: activity, RDD and partition differ in a few bits each. Never more than the last index. */
    static int index(long word) {
        return (int) ((word * 0x9e3779b97f4a7c15L) >>> (64 - Integer.numberOfTrailingZeros(RECORDS)));
    }

    private long record(int index) {
        return records + (long) index * RECORD_BYTES;
    }

    /** Shows a word whose record is not in its first place, or not made yet. */
    private void find(long word, int first) {
        if (word == 0) {
            Memory.putLongOrdered(place, 0);
            return;
        }
        int free = first;
        for (int i = NEIGHBOURS - 1; i >= 0; i--) {
            int index = (first + i) & (RECORDS - 1);
            if (words[index] == word) {
                Memory.putLongOrdered(place, record(index));
                return;
            }
            if (words[index] == 0) {
                free = index;
            }
        }
        make(word, free);
    }

    /** Writes the record of a word, in place of another where all are taken, and shows it. */
    private void make(long word, int index) {
        // The record may be the one that is shown.
        Memory.putLongOrdered(place, 0);
        Memory.storeFence();
        words[index] = 0;
        try {
            write(word, record(index));
            // Without a task a record is used once: the application may have changed when the word is shown again.
            words[index] = state.task == null ? 0 : word;
            Memory.putLongOrdered(place, record(index));
        } catch (Throwable e) {
            // A thread without a context is right, too; user code must not see the exception.
            Scopes.failed(e);
        }
    }

    private void write(long word, long record) {
        long end = record + ATTRIBUTES;
        Task task = state.task;
        end = put(end, 0, Published.application());
        if (task != null) {
            if (task.stageId >= 0) {
                end = put(end, 1, Integer.toString(task.stageId));
                end = put(end, 2, Integer.toString(task.stageAttempt));
                end = put(end, 4, Integer.toString(task.partition));
            }
            end = put(end, 3, Long.toString(task.attemptId));
        }
        // The word has no room for larger numbers; a wrong one is worse than none.
        int rdd = Words.rddId(word);
        if (rdd >= 0 && rdd + 1 < Contract.HOT_FIELD_MASK) {
            end = put(end, 5, Integer.toString(rdd));
            end = put(end, 6, Long.toString(Words.partition(word)));
        }
        int activity = Words.activity(word);
        if (activity < Contract.ACTIVITY_NAMES.length) {
            end = put(end, 7, Contract.ACTIVITY_NAMES[activity]);
        }
        int size = (int) (end - record - ATTRIBUTES);
        // Two bytes in the machine's order: every processor with a library of the marker has the least significant first.
        Memory.putByte(record + SIZE, (byte) size);
        Memory.putByte(record + SIZE + 1, (byte) (size >> 8));
        Memory.storeFence();
        Memory.putByte(record + VALID, (byte) 1);
        Memory.storeFence();
    }

    /** Appends an attribute: its key, the length of its text, the text. */
    private static long put(long at, int key, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int length = fit(bytes);
        Memory.putByte(at, (byte) key);
        Memory.putByte(at + 1, (byte) length);
        for (int i = 0; i < length; i++) {
            Memory.putByte(at + 2 + i, bytes[i]);
        }
        return at + 2 + length;
    }

    /** Length of a text that is cut between two characters. */
    static int fit(byte[] bytes) {
        int length = Math.min(bytes.length, TEXT_MAX);
        while (length < bytes.length && length > 0 && (bytes[length] & 0xc0) == 0x80) {
            length--;
        }
        return length;
    }
}
