package io.smtt.marker;

import com.sun.management.HotSpotDiagnosticMXBean;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.TimeUnit;

/**
 * Attaches the agent to this JVM, where no option of the JVM has loaded it: then the jar need not be on the worker before
 * the executor starts, and Spark itself may bring it ({@code spark.jars}).
 *
 * <p>The JVM loads agents on request through a Unix socket, {@code /tmp/.java_pidPID}, and creates that socket when it
 * gets SIGQUIT while a file {@code .attach_pidPID} exists. {@code VirtualMachine.attach} refuses its own JVM, and a JRE
 * may lack it, so this class speaks that protocol, in version 1, which every HotSpot has.
 *
 * <p>{@link SmttPlugin} calls it, in another class loader than the agent's where Spark brought the jar.
 */
public final class SelfAttach {
    /** A retransformation of all hooked classes takes about half a second. */
    private static final long ATTACH_LIMIT_MS = 20_000;
    private static final long SOCKET_LIMIT_MS = 5_000;
    private static final int POLL_MS = 20;
    private static final int SIGQUIT = 3;
    private static final int ANSWER_MAX = 4096;
    private static final String SOCKETS = "/tmp";

    private SelfAttach() {}

    /**
     * Attaches the agent of this class's jar unless it runs already. Waits until it does. Every problem is one warning,
     * and the plugin goes on without the agent.
     */
    public static void ensure() {
        try {
            if (agentRuns()) {
                return;
            }
            Path jar = Paths.get(SelfAttach.class.getProtectionDomain().getCodeSource().getLocation().toURI());
            Throwable[] problem = new Throwable[1];
            // A thread of its own: a JVM that does not answer must not keep the executor from its tasks.
            Thread attacher = new Thread(() -> {
                try {
                    attach(jar);
                } catch (Throwable e) {
                    problem[0] = e;
                }
            }, "smtt-attach");
            attacher.setDaemon(true);
            attacher.start();
            attacher.join(ATTACH_LIMIT_MS);
            if (attacher.isAlive()) {
                throw new IOException("the JVM has not answered within " + ATTACH_LIMIT_MS / 1000 + " s");
            }
            if (problem[0] != null) {
                throw problem[0];
            }
            // Otherwise the agent itself has said why it is off.
        } catch (Throwable thrown) {
            Throwable e = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
            Warnings.once("the agent could not attach itself; -javaagent:smtt-marker.jar in the executor's Java options loads it", e);
        }
    }

    /** Whether the agent runs: its classes are those of the class path's loader. */
    private static boolean agentRuns() throws ReflectiveOperationException {
        Class<?> transformer;
        try {
            transformer = Class.forName("io.smtt.marker.Transformer", true, ClassLoader.getSystemClassLoader());
        } catch (ClassNotFoundException noAgent) {
            return false;
        }
        Method installed = transformer.getDeclaredMethod("installed");
        installed.setAccessible(true);
        return (Boolean) installed.invoke(null);
    }

    private static void attach(Path jar) throws Exception {
        String path = jar.toString();
        if (!Files.isRegularFile(jar)) {
            throw new IOException(path + " is no jar");
        }
        if (path.indexOf('=') >= 0) {
            throw new IOException("the JVM takes what follows '=' in " + path + " for options");
        }
        refuseWhereForbidden();
        String pid = ManagementFactory.getRuntimeMXBean().getName().split("@")[0];
        Path socket = Paths.get(SOCKETS, ".java_pid" + pid);
        if (!Files.exists(socket, LinkOption.NOFOLLOW_LINKS)) {
            openSocket(pid, socket);
        }
        String answer = ask(socket, "load", "instrument", "false", path);
        // "0" on the first line: the request was carried out; from JDK 9 on the agent's own code follows.
        String[] lines = answer.split("\n");
        boolean done = lines[0].trim().equals("0")
                && (lines.length < 2 || lines[1].trim().isEmpty() || lines[1].trim().matches("(return code: )?0"));
        if (!done) {
            throw new IOException("the JVM answers: " + answer.trim().replace('\n', ' '));
        }
    }

    /** SIGQUIT would print all stacks in a JVM that does not listen, and another kind of JVM may do worse. */
    private static void refuseWhereForbidden() throws IOException {
        HotSpotDiagnosticMXBean hotSpot = ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class);
        if (hotSpot == null) {
            throw new IOException("this JVM is not HotSpot");
        }
        if (Boolean.parseBoolean(hotSpot.getVMOption("DisableAttachMechanism").getValue())) {
            throw new IOException("-XX:+DisableAttachMechanism forbids it");
        }
        try {
            if (!Boolean.parseBoolean(hotSpot.getVMOption("EnableDynamicAgentLoading").getValue())) {
                throw new IOException("-XX:-EnableDynamicAgentLoading forbids it");
            }
        } catch (IllegalArgumentException beforeJdk9) {
            // The option does not exist there.
        }
    }

    /** Makes the JVM listen. */
    private static void openSocket(String pid, Path socket) throws Exception {
        Path trigger = Paths.get(SOCKETS, ".attach_pid" + pid);
        try {
            Files.createFile(trigger);
        } catch (IOException notThere) {
            // The JVM looks in its working directory too.
            trigger = Files.createFile(Paths.get("").toAbsolutePath().resolve(".attach_pid" + pid));
        }
        try {
            quit(pid);
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(SOCKET_LIMIT_MS);
            while (!Files.exists(socket, LinkOption.NOFOLLOW_LINKS)) {
                if (System.nanoTime() > end) {
                    throw new IOException("the JVM has not made " + socket);
                }
                Thread.sleep(POLL_MS);
            }
        } finally {
            Files.deleteIfExists(trigger);
        }
    }

    /** Sends SIGQUIT to this process: Java itself cannot. */
    private static void quit(String pid) throws Exception {
        if (!handlesQuit()) {
            throw new IOException("this JVM does not handle SIGQUIT");
        }
        Process shell = new ProcessBuilder("/bin/sh", "-c", "kill -QUIT " + pid)
                .redirectErrorStream(true).redirectOutput(new File("/dev/null")).start();
        shell.getOutputStream().close();
        if (!shell.waitFor(SOCKET_LIMIT_MS, TimeUnit.MILLISECONDS) || shell.exitValue() != 0) {
            throw new IOException("SIGQUIT could not be sent");
        }
    }

    /** Whether the signal has a handler; without one it would end the process (-Xrs). */
    private static boolean handlesQuit() throws IOException {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"), StandardCharsets.ISO_8859_1)) {
            if (line.startsWith("SigCgt:")) {
                long caught = Long.parseUnsignedLong(line.substring("SigCgt:".length()).trim(), 16);
                return (caught >> (SIGQUIT - 1) & 1) == 1;
            }
        }
        return false;
    }

    /** Sends one request and reads the answer. */
    private static String ask(Path socket, String... words) throws Exception {
        ByteArrayOutputStream request = new ByteArrayOutputStream();
        request.write(new byte[] {'1', 0});
        for (String word : words) {
            request.write(word.getBytes(StandardCharsets.UTF_8));
            request.write(0);
        }
        try (SocketChannel channel = connect(socket)) {
            ByteBuffer out = ByteBuffer.wrap(request.toByteArray());
            while (out.hasRemaining()) {
                channel.write(out);
            }
            ByteBuffer in = ByteBuffer.allocate(ANSWER_MAX);
            while (in.hasRemaining() && channel.read(in) >= 0) {
                // Until the JVM closes its end.
            }
            return new String(in.array(), 0, in.position(), StandardCharsets.UTF_8);
        }
    }

    /** Java has Unix sockets from JDK 16 on; this class is compiled for JDK 8. */
    private static SocketChannel connect(Path socket) throws Exception {
        Method of;
        try {
            of = Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", Path.class);
        } catch (ClassNotFoundException older) {
            throw new IOException("Java before 16 has no Unix sockets");
        }
        return SocketChannel.open((SocketAddress) of.invoke(null, socket));
    }
}
