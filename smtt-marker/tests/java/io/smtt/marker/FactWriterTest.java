package io.smtt.marker;

import java.nio.charset.StandardCharsets;
import java.util.List;

final class FactWriterTest {
    private static final int GUARD = 64;

    private final ThreadState teller = Facts.teller();
    private final long buffer = Memory.allocate(Contract.PAYLOAD_MAX + GUARD);
    private final FactWriter writer = new FactWriter(teller, buffer);

    private FactWriter read() {
        return writer.begin(FactForm.BLOCK_READ)
                .word(Contract.BLOCK_READ_RDD_ID, 7)
                .word(Contract.BLOCK_READ_PARTITION, 3)
                .word(Contract.BLOCK_READ_TASK_ATTEMPT_ID, -1);
    }

    private byte[] bytes(int from, int count) {
        byte[] bytes = new byte[count];
        for (int i = 0; i < count; i++) {
            bytes[i] = Memory.getByte(buffer + from + i);
        }
        return bytes;
    }

    private int length(int at) {
        byte[] length = bytes(at, 2);
        return (length[0] & 0xff) | (length[1] & 0xff) << 8;
    }

    @Test
    void wordsThenStrings() {
        read().text(Contract.BLOCK_READ_BLOCK_ID, "rdd_7_3").tell();
        Check.same("rdd_id", 7, Memory.getLong(buffer));
        Check.same("partition", 3, Memory.getLong(buffer + 8));
        Check.same("task_attempt_id", -1, Memory.getLong(buffer + 16));
        Check.same("length of the string", 7, length(24));
        Check.same("the string", "rdd_7_3", new String(bytes(26, 7), StandardCharsets.UTF_8));
    }

    @Test
    void theOrderOfCallsDoesNotMatterForWords() {
        writer.begin(FactForm.BLOCK_READ)
                .word(Contract.BLOCK_READ_TASK_ATTEMPT_ID, 11)
                .word(Contract.BLOCK_READ_RDD_ID, 7)
                .word(Contract.BLOCK_READ_PARTITION, 3)
                .text(Contract.BLOCK_READ_BLOCK_ID, "x").tell();
        Check.same("rdd_id", 7, Memory.getLong(buffer));
        Check.same("partition", 3, Memory.getLong(buffer + 8));
        Check.same("task_attempt_id", 11, Memory.getLong(buffer + 16));
    }

    @Test
    void rangesComeBetween() {
        FactWriter fact = writer.begin(FactForm.BLOCK_STORED);
        for (int i = 0; i < FactForm.BLOCK_STORED.words.length - 1; i++) {
            fact.word(FactForm.BLOCK_STORED.word(i), i);
        }
        fact.word(Contract.BLOCK_STORED_RANGE_COUNT, 2).range(0x1000, 16).range(0x2000, 32)
                .text(Contract.BLOCK_STORED_BLOCK_ID, "b").tell();
        Check.same("first address", 0x1000, Memory.getLong(buffer + 64));
        Check.same("first length", 16, Memory.getLong(buffer + 72));
        Check.same("second address", 0x2000, Memory.getLong(buffer + 80));
        Check.same("second length", 32, Memory.getLong(buffer + 88));
        Check.same("length of the string", 1, length(96));
    }

    @Test
    void aLongStringIsCutAtACharacter() {
        StringBuilder text = new StringBuilder("x");
        for (int i = 0; i < 200; i++) {
            text.append('\u00e9');
        }
        // The limit is 200 bytes: one of x, and 99 characters of two bytes; the next would be cut in half.
        read().text(Contract.BLOCK_READ_BLOCK_ID, text.toString()).tell();
        Check.same("length", 199, length(24));
        Check.same("the string", text.substring(0, 100), new String(bytes(26, 199), StandardCharsets.UTF_8));
        read().text(Contract.BLOCK_READ_BLOCK_ID, null).tell();
        Check.same("length of no string", 0, length(24));
    }

    @Test
    void aWordOfAnotherFactIsRefused() {
        Check.refused("a word of pageFreed", () -> read().word(Contract.PAGE_FREED_ADDRESS, 1));
        Check.refused("a string of pageFreed", () -> read().text(Contract.PAGE_FREED_CONSUMER, "x"));
        Check.refused("a word as a string", () -> read().text(Contract.BLOCK_READ_RDD_ID, "x"));
        Check.refused("a string as a word", () -> read().word(Contract.BLOCK_READ_BLOCK_ID, 1));
    }

    @Test
    void anIncompleteFactIsRefused() {
        Check.refused("no string", () -> read().tell());
        Check.refused("a word too few", () -> writer.begin(FactForm.BLOCK_READ)
                .word(Contract.BLOCK_READ_RDD_ID, 7)
                .word(Contract.BLOCK_READ_TASK_ATTEMPT_ID, -1)
                .text(Contract.BLOCK_READ_BLOCK_ID, "x").tell());
        Check.refused("strings in another order", () -> writer.begin(FactForm.BLOCK_REMOVED)
                .word(Contract.BLOCK_REMOVED_RDD_ID, 7)
                .word(Contract.BLOCK_REMOVED_PARTITION, 3)
                .text(Contract.BLOCK_REMOVED_ACTIVITY, "1"));
        Check.refused("a range where there are none", () -> read().range(1, 1));
        Check.refused("fewer ranges than counted", () -> {
            fill(FactForm.BLOCK_MOVED, "x");
            writer.word(Contract.BLOCK_MOVED_RANGE_COUNT, 97).tell();
        });
        Check.refused("a range too many", () -> {
            writer.begin(FactForm.BLOCK_MOVED);
            for (int i = 0; i <= Contract.RANGES_PER_FACT; i++) {
                writer.range(1, 1);
            }
        });
    }

    /** Everything that a fact can have, each string from the same text. */
    private void fill(FactForm form, String text) {
        writer.begin(form);
        for (int i = 0; i < form.words.length; i++) {
            writer.word(form.word(i), form.ranges ? Contract.RANGES_PER_FACT : i);
        }
        for (int i = 0; form.ranges && i < Contract.RANGES_PER_FACT; i++) {
            writer.range(i, i);
        }
        for (int i = 0; i < form.strings.length; i++) {
            writer.text(form.string(i), text);
        }
    }

    @Test
    void theLongestFactsFit() {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < Contract.PAYLOAD_MAX; i++) {
            text.append('x');
        }
        for (FactForm form : FactForm.values()) {
            for (int i = 0; i < GUARD; i++) {
                Memory.putByte(buffer + Contract.PAYLOAD_MAX + i, (byte) 0x5a);
            }
            fill(form, text.toString());
            Facts.Fact told = Facts.one(writer::tell);
            Check.same("entry", form.entry, told.entry);
            for (int i = 0; i < form.strings.length; i++) {
                Check.same(form.strings[i] + " of " + form.entry, form.limits[i], told.text(form.strings[i]).length());
            }
            for (byte guard : bytes(Contract.PAYLOAD_MAX, GUARD)) {
                Check.same("byte after the buffer of " + form.entry, 0x5a, guard);
            }
        }
    }

    @Test
    void nothingIsToldBeforeTheExecutorIsKnown() {
        long before = Facts.teller().factsTold();
        Facts.known(false);
        try {
            List<Facts.Fact> told = Facts.during(() -> read().text(Contract.BLOCK_READ_BLOCK_ID, "x").tell());
            Check.same("facts", 0, told.size());
        } finally {
            Facts.known(true);
        }
        Check.same("facts counted", before, Facts.teller().factsTold());
        Check.same("facts", 1, Facts.during(() -> read().text(Contract.BLOCK_READ_BLOCK_ID, "x").tell()).size());
        Check.same("facts counted then", before + 1, Facts.teller().factsTold());
    }
}
