package io.smtt.marker;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import org.apache.xbean.asm9.ClassReader;
import org.apache.xbean.asm9.ClassVisitor;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;
import org.apache.xbean.asm9.Type;

/**
 * Checks which hooks fit a Spark version, without running it:
 * {@code java -cp "smtt-marker.jar:SPARK/jars/*" io.smtt.marker.HookCheck}.
 *
 * <p>Rewrites every class of the table, has the JVM verify the result, and checks that each callback exists with the
 * descriptor that the rewritten code calls. Exit code 1 where something does not fit.
 */
public final class HookCheck {
    private static int wrong;

    private HookCheck() {}

    /** Loads Spark's classes itself, the table's rewritten, so that they are verified against one another. */
    private static final class Loader extends ClassLoader {
        private final Transformer transformer;

        Loader(Transformer transformer) {
            super(HookCheck.class.getClassLoader());
            this.transformer = transformer;
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                if (loaded != null || !name.startsWith("org.apache.spark.")) {
                    return loaded != null ? loaded : super.loadClass(name, resolve);
                }
                try {
                    String internal = name.replace('.', '/');
                    byte[] bytes = read(internal);
                    if (bytes == null) {
                        throw new ClassNotFoundException(name);
                    }
                    byte[] rewritten = transformer.transform(this, internal, null, null, bytes);
                    bytes = rewritten == null ? bytes : rewritten;
                    return defineClass(name, bytes, 0, bytes.length);
                } catch (IOException e) {
                    throw new ClassNotFoundException(name, e);
                }
            }
        }
    }

    /** Checks every class of the table that this class path has. */
    public static void main(String[] arguments) throws Exception {
        Transformer transformer = new Transformer();
        Loader loader = new Loader(transformer);
        int classes = 0;
        for (String name : HookTable.classes()) {
            byte[] bytes = read(name);
            if (bytes == null) {
                System.out.println("not in this version: " + name);
                continue;
            }
            byte[] rewritten = transformer.transform(HookCheck.class.getClassLoader(), name, null, null, bytes);
            if (rewritten == null) {
                complain("not rewritten: " + name);
                continue;
            }
            classes++;
            verify(loader, name.replace('/', '.'));
            checkCallbacks(name, rewritten);
        }
        if (MissingHooks.count() > 0) {
            complain("missing: " + MissingHooks.names());
        }
        System.out.println(classes + " classes rewritten and verified, " + wrong + " problems");
        System.exit(wrong == 0 ? 0 : 1);
    }

    /** A class is verified when it is initialised, before its static initialiser runs; whether that fails says nothing. */
    private static void verify(Loader loader, String name) {
        try {
            Class.forName(name, true, loader);
        } catch (VerifyError | IncompatibleClassChangeError e) {
            complain(name + ": " + e);
        } catch (Throwable e) {
            System.out.println("verified, but its initialiser needs a running Spark: " + name);
        }
    }

    private static void checkCallbacks(String name, byte[] bytes) {
        new ClassReader(bytes).accept(new ClassVisitor(Opcodes.ASM9) {
            @Override
            public MethodVisitor visitMethod(int access, String method, String descriptor, String signature, String[] exceptions) {
                return new MethodVisitor(Opcodes.ASM9) {
                    @Override
                    public void visitMethodInsn(int opcode, String owner, String callback, String callDescriptor, boolean isInterface) {
                        if (owner.startsWith("io/smtt/marker/") && !exists(owner, callback, callDescriptor)) {
                            complain(name + "." + method + " calls " + owner + "." + callback + callDescriptor + ", which does not exist");
                        }
                    }
                };
            }
        }, ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
    }

    private static boolean exists(String owner, String name, String descriptor) {
        try {
            return Arrays.stream(Class.forName(owner.replace('/', '.')).getMethods())
                    .anyMatch(method -> method.getName().equals(name) && Type.getMethodDescriptor(method).equals(descriptor));
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    private static byte[] read(String name) throws IOException {
        try (InputStream in = HookCheck.class.getClassLoader().getResourceAsStream(name + ".class")) {
            if (in == null) {
                return null;
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            byte[] part = new byte[8192];
            for (int count = in.read(part); count >= 0; count = in.read(part)) {
                out.write(part, 0, count);
            }
            return out.toByteArray();
        }
    }

    private static void complain(String text) {
        wrong++;
        System.out.println(text);
    }
}
