package io.smtt.marker;

import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** A diagnosis aid (agent option {@code log=PATH}): one line per fact, decoded again from the payload's bytes. */
final class FactLog {
    private static volatile OutputStream out;

    private FactLog() {}

    /** Opens the file where the option is given. */
    static void open() {
        String path = Options.get("log");
        if (path == null || out != null) {
            return;
        }
        try {
            out = new FileOutputStream(path.replace("%p", Long.toString(processId())), true);
        } catch (Throwable e) {
            Warnings.once("cannot append to the fact log " + path, e);
        }
    }

    static boolean on() {
        return out != null;
    }

    private static long processId() throws Exception {
        // Java 8 has no ProcessHandle.
        return Long.parseLong(new java.io.File("/proc/self").getCanonicalFile().getName());
    }

    static void write(FactForm form, long payload, int length) {
        try {
            StringBuilder line = new StringBuilder(200);
            line.append(System.nanoTime()).append(' ').append(form.entry);
            int at = 0;
            long last = 0;
            for (String word : form.words) {
                last = Memory.getLong(payload + at);
                at += 8;
                line.append(' ').append(word).append('=').append(word.equals("hot") ? Long.toHexString(last) : Long.toString(last));
            }
            if (form.ranges) {
                line.append(" ranges=");
                for (long i = 0; i < last; i++, at += 16) {
                    line.append(i == 0 ? "" : ",").append(Long.toHexString(Memory.getLong(payload + at)));
                    line.append('+').append(Memory.getLong(payload + at + 8));
                }
            }
            for (String string : form.strings) {
                int bytes = (Memory.getByte(payload + at) & 0xff) | (Memory.getByte(payload + at + 1) & 0xff) << 8;
                at += 2;
                byte[] text = new byte[bytes];
                for (int i = 0; i < bytes; i++) {
                    text[i] = Memory.getByte(payload + at + i);
                }
                at += bytes;
                line.append(' ').append(string).append("=\"").append(new String(text, StandardCharsets.UTF_8).replace('\n', ' ').replace('"', '\'')).append('"');
            }
            if (at != length) {
                line.append(" BROKEN length=").append(length).append(" decoded=").append(at);
            }
            line.append(" thread=\"").append(Thread.currentThread().getName()).append("\"\n");
            OutputStream to = out;
            synchronized (to) {
                to.write(line.toString().getBytes(StandardCharsets.UTF_8));
            }
        } catch (Throwable e) {
            Warnings.once("fact log stopped", e);
            out = null;
        }
    }
}
