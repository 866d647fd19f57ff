package io.smtt.marker;

import java.util.Objects;

/** What a test expects; a failure names the value that was expected and the one that was seen. */
final class Check {
    private Check() {}

    static void same(String what, Object expected, Object seen) {
        if (!Objects.equals(expected, seen)) {
            throw new AssertionError(what + ": expected " + expected + ", seen " + seen);
        }
    }

    static void same(String what, long expected, long seen) {
        if (expected != seen) {
            throw new AssertionError(what + ": expected " + expected + " (0x" + Long.toHexString(expected) + "), seen " + seen
                    + " (0x" + Long.toHexString(seen) + ")");
        }
    }

    static void that(String what, boolean holds) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** Something is refused with an exception. */
    static void refused(String what, Runnable action) {
        try {
            action.run();
        } catch (IllegalArgumentException | IllegalStateException expected) {
            return;
        }
        throw new AssertionError(what + " was not refused");
    }
}
