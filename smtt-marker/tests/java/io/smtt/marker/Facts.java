package io.smtt.marker;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Makes this JVM an executor that tells facts, with the native library and a slot file, and reads them from the fact log. */
final class Facts {
    /** One fact, as it stands in the log: decoded from the payload that the entry point was given. */
    static final class Fact {
        private static final Pattern FIELD = Pattern.compile("(\\w+)=(\"[^\"]*\"|\\S*)");

        final String line;
        final String entry;
        private final Map<String, String> fields = new HashMap<>();

        private Fact(String line) {
            this.line = line;
            entry = line.split(" ")[1];
            for (Matcher field = FIELD.matcher(line); field.find(); ) {
                fields.put(field.group(1), field.group(2));
            }
        }

        String text(String name) {
            String value = fields.get(name);
            Check.that(name + " is missing in " + line, value != null);
            return value.replace("\"", "");
        }

        long word(String name) {
            return Long.parseLong(text(name));
        }
    }

    private static final Path LOG;

    static {
        try {
            LOG = Files.createTempFile("smtt-facts", ".log");
            LOG.toFile().deleteOnExit();
            System.setProperty("smtt.log", LOG.toString());
            FactLog.open();
            Check.that("the native library is loaded", Native.load());
            Check.that("the slot file is made", SlotFile.create());
            known(true);
        } catch (IOException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private Facts() {}

    /** Sets what only a running Spark can make true: the executor has described itself. */
    static void known(boolean value) {
        try {
            Field known = ExecutorIdentity.class.getDeclaredField("known");
            known.setAccessible(true);
            known.setBoolean(null, value);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /** The thread that calls, as the marker knows it. */
    static ThreadState teller() {
        return ThreadState.current();
    }

    /** The facts that are sent while something runs. */
    static List<Fact> during(Runnable action) {
        try {
            long before = Files.size(LOG);
            action.run();
            // Not the whole log: some tests compare what their thread allocates.
            byte[] added = new byte[(int) (Files.size(LOG) - before)];
            try (RandomAccessFile log = new RandomAccessFile(LOG.toFile(), "r")) {
                log.seek(before);
                log.readFully(added);
            }
            List<Fact> facts = new ArrayList<>();
            for (String line : new String(added, StandardCharsets.UTF_8).split("\n")) {
                if (!line.isEmpty()) {
                    facts.add(new Fact(line));
                }
            }
            return facts;
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    /** The only fact that is sent while something runs. */
    static Fact one(Runnable action) {
        List<Fact> facts = during(action);
        Check.same("facts", 1, facts.size());
        return facts.get(0);
    }
}
