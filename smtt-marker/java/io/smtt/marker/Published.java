package io.smtt.marker;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;

/**
 * What this JVM publishes for OpenTelemetry's profilers: who it is, and the names of the attributes of its threads'
 * contexts (OTEP 4719, its process context). Off unless the option {@code otel} is true.
 */
final class Published {
    private static final String MAPPING = "OTEL_CTX";
    /** The form of the threads' contexts that today's readers accept. */
    private static final String SCHEMA = "tlsdesc_v1_dev";
    /** The longest name of an application that is published. */
    private static final int NAME_MAX = 256;

    private static volatile boolean on;
    private static boolean refused;
    private static volatile String application = "";
    private static String said;
    /** Address of the context's header, or 0. */
    private static long header;

    private Published() {}

    /** Whether threads have contexts. */
    static boolean on() {
        return on;
    }

    static String application() {
        return application;
    }

    /** Publishes who this executor is, or which application it serves from now on. One caller at a time. */
    static void describe(String applicationId, String applicationName, String executorId) {
        String saying = applicationId + '\n' + applicationName + '\n' + executorId;
        if (refused || !Options.otel() || saying.equals(said)) {
            return;
        }
        try {
            if (header == 0) {
                if (isTaken()) {
                    refuse("another library publishes this process's context already", null);
                    return;
                }
                System.load(LibraryFile.bundledFile(LibraryFile.THREAD_CONTEXT).toString());
            }
            byte[] payload = payload(applicationId, applicationName, executorId);
            long memory = Memory.allocate(payload.length);
            for (int i = 0; i < payload.length; i++) {
                Memory.putByte(memory + i, payload[i]);
            }
            long answer = Native.publish(header, memory, payload.length);
            Memory.free(memory);
            if (answer < 0 && answer > -4096) {
                refuse("the process's context cannot be published: errno " + -answer, null);
                return;
            }
            header = answer;
            said = saying;
            application = applicationId;
            on = true;
        } catch (Throwable e) {
            refuse("the threads' contexts are not published", e);
        }
    }

    private static void refuse(String why, Throwable cause) {
        refused = true;
        on = false;
        Warnings.once("otel=true has no effect: " + why, cause);
    }

    /** Whether the process has a context already: there must not be two. */
    private static boolean isTaken() throws Exception {
        String maps = new String(Files.readAllBytes(Paths.get("/proc/self/maps")), StandardCharsets.UTF_8);
        return maps.contains(":" + MAPPING);
    }

    /** Address of the calling thread's {@code otel_thread_ctx_v1}. */
    static native long place();

    /** The message {@code ProcessContext} in protobuf's encoding. */
    static byte[] payload(String applicationId, String applicationName, String executorId) {
        Message resource = new Message()
                .message(1, attribute("service.name", text(applicationName)))
                .message(1, attribute("service.instance.id", text(applicationId + "/" + executorId)))
                .message(1, attribute("spark.application.id", text(applicationId)))
                .message(1, attribute("spark.executor.id", text(executorId)));
        Message keys = new Message();
        for (String key : ThreadContext.KEYS) {
            keys.message(1, text(key));
        }
        return new Message().message(1, resource)
                .message(2, attribute("threadlocal.schema_version", text(SCHEMA)))
                .message(2, attribute("threadlocal.attribute_key_map", new Message().message(5, keys)))
                .bytes();
    }

    /** {@code KeyValue}. */
    private static Message attribute(String key, Message value) {
        return new Message().bytes(1, key.getBytes(StandardCharsets.UTF_8)).message(2, value);
    }

    /** {@code AnyValue} of a text. */
    private static Message text(String value) {
        String cut = value.length() <= NAME_MAX ? value : value.substring(0, NAME_MAX);
        return new Message().bytes(1, cut.getBytes(StandardCharsets.UTF_8));
    }

    /** A message of protobuf that has only fields with a length. */
    private static final class Message {
        private static final int WITH_LENGTH = 2;

        private final ByteArrayOutputStream out = new ByteArrayOutputStream();

        Message message(int field, Message message) {
            return bytes(field, message.bytes());
        }

        Message bytes(int field, byte[] bytes) {
            out.write(field << 3 | WITH_LENGTH);
            int rest = bytes.length;
            for (; rest > 0x7f; rest >>>= 7) {
                out.write(rest & 0x7f | 0x80);
            }
            out.write(rest);
            out.write(bytes, 0, bytes.length);
            return this;
        }

        byte[] bytes() {
            return out.toByteArray();
        }
    }
}
