package io.smtt.marker;

import java.lang.instrument.ClassFileTransformer;
import java.security.ProtectionDomain;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.xbean.asm9.ClassReader;
import org.apache.xbean.asm9.ClassVisitor;
import org.apache.xbean.asm9.ClassWriter;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;

/**
 * Rewrites the classes of the hook table as they are loaded, with Spark's own copy of ASM.
 *
 * <p>A class that cannot be rewritten stays as it is. A hook whose class is never loaded is not missing. A hook whose
 * class has no such method is missing, and is reported by name.
 */
final class Transformer implements ClassFileTransformer {
    private static final int SKIPPED = Opcodes.ACC_ABSTRACT | Opcodes.ACC_NATIVE | Opcodes.ACC_BRIDGE;

    private static volatile boolean installed;
    private final Set<String> rewritten = new ConcurrentSkipListSet<>();
    private volatile boolean off;

    /** Whether hooks are in place; otherwise the plugin reports what it can without them. */
    static boolean installed() {
        return installed;
    }

    void installed(boolean value) {
        installed = value;
    }

    /** From now on every class stays as it is. */
    void off() {
        off = true;
        installed = false;
    }

    Set<String> rewritten() {
        return rewritten;
    }

    @Override
    public byte[] transform(ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] bytes) {
        try {
            List<Hook> hooks = name == null || off ? null : HookTable.of(name);
            if (hooks == null || !sees(loader)) {
                return null;
            }
            return rewrite(name, bytes, hooks);
        } catch (Throwable e) {
            MissingHooks.add(name.substring(name.lastIndexOf('/') + 1), e);
            return null;
        }
    }

    /** Only loaders that find the callbacks: the one of the class path, where the agent is too, and its children. */
    private static boolean sees(ClassLoader loader) {
        for (ClassLoader at = loader; at != null; at = at.getParent()) {
            if (at == Transformer.class.getClassLoader()) {
                return true;
            }
        }
        return false;
    }

    private byte[] rewrite(String name, byte[] bytes, List<Hook> hooks) {
        ClassReader reader = new ClassReader(bytes);
        // Not COMPUTE_FRAMES: that would load classes to compare them.
        ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
        Set<String> found = new HashSet<>();
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String method, String descriptor, String signature, String[] exceptions) {
                MethodVisitor visitor = super.visitMethod(access, method, descriptor, signature, exceptions);
                if ((access & SKIPPED) != 0) {
                    return visitor;
                }
                for (Hook hook : hooks) {
                    if (!hook.matches(method, descriptor)) {
                        continue;
                    }
                    if (hook.kind == Hook.Kind.CALL) {
                        visitor = new CallRewriter(hook, visitor, () -> found.add(hook.group));
                    } else {
                        found.add(hook.group);
                        visitor = new Rewriter(hook, visitor, access, method, descriptor);
                    }
                }
                return visitor;
            }
        }, ClassReader.EXPAND_FRAMES);
        for (Hook hook : hooks) {
            if (!found.contains(hook.group)) {
                MissingHooks.add(hook.group, null);
            }
        }
        if (found.isEmpty()) {
            return null;
        }
        rewritten.add(name);
        return writer.toByteArray();
    }
}
