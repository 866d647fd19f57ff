package io.smtt.marker;

import java.nio.charset.StandardCharsets;

/**
 * Writes one fact at a time into its thread's off-heap buffer and calls the entry point, which may have a probe. Words
 * and strings are named by constants of {@link Contract}: one that belongs to another fact, or is missing, is refused.
 */
final class FactWriter {
    /** By ordinal: facts that the native library, of an earlier marker, has no entry point for. */
    private static final boolean[] LACKED = new boolean[FactForm.values().length];

    private final ThreadState owner;
    private final long buffer;
    private FactForm form;
    /** Offset of the next range or string. */
    private int at;
    /** One bit per word that is written. */
    private int words;
    private int ranges;
    private int strings;

    FactWriter(ThreadState owner, long buffer) {
        this.owner = owner;
        this.buffer = buffer;
    }

    FactWriter begin(FactForm form) {
        this.form = form;
        at = Long.BYTES * form.words.length;
        words = 0;
        ranges = 0;
        strings = 0;
        return this;
    }

    FactWriter word(int word, long value) {
        int place = form.placeOfWord(word);
        Memory.putLong(buffer + Long.BYTES * place, value);
        words |= 1 << place;
        return this;
    }

    FactWriter range(long address, long length) {
        if (!form.ranges || strings != 0 || ranges == Contract.RANGES_PER_FACT) {
            throw new IllegalStateException(form.entry + " has no room for a range here");
        }
        Memory.putLong(buffer + at, address);
        Memory.putLong(buffer + at + Long.BYTES, length);
        at += 2 * Long.BYTES;
        ranges++;
        return this;
    }

    /** Adds a string, cut at a character boundary where it is longer than its limit. Strings come in their order. */
    FactWriter text(int string, String value) {
        int place = form.placeOfString(string);
        if (place != strings) {
            throw new IllegalStateException(form.entry + " has " + form.strings[place] + " at another place");
        }
        strings++;
        byte[] bytes = value == null ? new byte[0] : value.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(bytes.length, form.limits[place]);
        while (length > 0 && length < bytes.length && (bytes[length] & 0xc0) == 0x80) {
            length--;
        }
        Memory.putByte(buffer + at, (byte) length);
        Memory.putByte(buffer + at + 1, (byte) (length >>> 8));
        at += 2;
        for (int i = 0; i < length; i++) {
            Memory.putByte(buffer + at + i, bytes[i]);
        }
        at += length;
        return this;
    }

    /** Calls the entry point. The fact is counted first, so that the arrivals never exceed the count. */
    void tell() {
        if (!complete()) {
            throw new IllegalStateException(form.entry + " is not complete");
        }
        if (form != FactForm.EXECUTOR_DESCRIBED && !ExecutorIdentity.known()) {
            // The fact would belong to no executor. What is still alive is reported when the executor is known.
            return;
        }
        if (LACKED[form.ordinal()]) {
            return;
        }
        owner.countFact();
        if (FactLog.on()) {
            FactLog.write(form, buffer, at);
        }
        try {
            form.call(buffer, at);
        } catch (UnsatisfiedLinkError e) {
            LACKED[form.ordinal()] = true;
            owner.uncountFact();
            Warnings.once("the native library is of an earlier marker than the jar and has no " + form.entry
                    + ", which is not reported: install jar and library of one release", null);
        }
    }

    private boolean complete() {
        int count = form.words.length;
        return words == (1 << count) - 1 && strings == form.strings.length
                && (!form.ranges || Memory.getLong(buffer + Long.BYTES * (count - 1)) == ranges);
    }
}
