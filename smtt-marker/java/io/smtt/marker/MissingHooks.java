package io.smtt.marker;

import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;

/** Hooks whose class was loaded but whose method is not as expected: an unknown Spark version. */
final class MissingHooks {
    private static final Set<String> NAMES = new ConcurrentSkipListSet<>();

    private MissingHooks() {}

    static void add(String name, Throwable cause) {
        if (NAMES.add(name)) {
            Warnings.once("hook " + name + " has no target in this Spark version, its data is not measured", cause);
        }
    }

    static int count() {
        return NAMES.size();
    }

    static String names() {
        return String.join(",", NAMES);
    }
}
