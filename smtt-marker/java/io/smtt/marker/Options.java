package io.smtt.marker;

import java.util.Properties;

/**
 * Options of the agent, as {@code -javaagent:smtt-marker.jar=name=value,name=value} or system properties
 * {@code smtt.name}.
 *
 * <ul>
 * <li>{@code library}: path of libsmtt_marker.so, where it is not found by itself.
 * <li>{@code exact=true}: tags cached reads per record; for jobs that read two cached RDDs side by side.
 * <li>{@code addresses}: {@code slow} asks the JVM for each address on the heap instead of reading handles, {@code polled}
 * works without the JVM's tool interface, {@code off} reports no address on the heap.
 * <li>{@code memory}: {@code unsafe} or {@code foreign} replaces the choice of {@link Memory}, for comparisons.
 * <li>{@code examine=N}: examinations of resident memory take at most a part of a CPU's time in N (2000).
 * <li>{@code otel=true}: publishes the context of each thread for OpenTelemetry's profilers.
 * <li>{@code log}: a file that gets one line per fact, for diagnosis; {@code %p} becomes the process id.
 * </ul>
 */
final class Options {
    private static final Properties GIVEN = new Properties();

    private Options() {}

    /** Takes the agent's argument string. */
    static void parse(String arguments) {
        if (arguments == null || arguments.isEmpty()) {
            return;
        }
        for (String pair : arguments.split(",")) {
            int equals = pair.indexOf('=');
            if (equals <= 0) {
                Warnings.once("agent option '" + pair + "' has no '=' and is ignored", null);
            } else {
                GIVEN.setProperty(pair.substring(0, equals).trim(), pair.substring(equals + 1).trim());
            }
        }
    }

    /** The value of an option, or null. */
    static String get(String name) {
        String given = GIVEN.getProperty(name);
        return given != null ? given : System.getProperty("smtt." + name);
    }

    static boolean exact() {
        return "true".equalsIgnoreCase(get("exact"));
    }

    static boolean otel() {
        return "true".equalsIgnoreCase(get("otel"));
    }
}
