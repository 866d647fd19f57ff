package io.smtt.marker;

import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** The marker's messages for the user: each line once, on the standard error of the JVM. A warning ends with what it means for the job. */
final class Warnings {
    private static final int LINES_MAX = 100;
    private static final Set<String> TOLD = Collections.newSetFromMap(new ConcurrentHashMap<>());

    private Warnings() {}

    /** Says what is as it should be. */
    static void state(String text) {
        try {
            if (TOLD.size() < LINES_MAX && TOLD.add(text)) {
                System.err.println("smtt-marker: " + text);
            }
        } catch (Throwable ignored) {
            // As below.
        }
    }

    static void once(String text, Throwable cause) {
        try {
            if (TOLD.size() >= LINES_MAX || !TOLD.add(text)) {
                return;
            }
            System.err.println("smtt-marker: " + text + (cause == null ? "" : ": " + cause) + " (the job runs unchanged)");
            if (cause != null && Options.get("log") != null) {
                cause.printStackTrace();
            }
        } catch (Throwable ignored) {
            // A closed standard error or no memory left: nothing more can be done here.
        }
    }
}
