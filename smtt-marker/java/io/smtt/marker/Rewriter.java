package io.smtt.marker;

import org.apache.xbean.asm9.Label;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;
import org.apache.xbean.asm9.Type;
import org.apache.xbean.asm9.commons.AdviceAdapter;

/** Rewrites one method for one hook. */
final class Rewriter extends AdviceAdapter {
    private static final String CONTEXT = "io/smtt/marker/Context";
    private static final String THREAD = "io/smtt/marker/ThreadState";
    private static final String OBJECT = "Ljava/lang/Object;";

    private final Hook hook;
    private final boolean instance;
    private final Type[] parameters;
    private final Type returned;
    private final Label start = new Label();
    /** Local variable that lives from entry to exit (the frame, or HOT's thread), or -1. */
    private int local = -1;
    /** HOT's word before. */
    private int before;

    Rewriter(Hook hook, MethodVisitor next, int access, String name, String descriptor) {
        super(Opcodes.ASM9, next, access, name, descriptor);
        this.hook = hook;
        instance = (access & Opcodes.ACC_STATIC) == 0;
        parameters = Type.getArgumentTypes(descriptor);
        returned = Type.getReturnType(descriptor);
    }

    @Override
    protected void onMethodEnter() {
        switch (hook.kind) {
            case ENTRY:
                callback(hook.begin, "", "V");
                break;
            case ARGUMENT:
                loadArg(hook.replaced - 1);
                invoke(hook.begin, "(" + OBJECT + ")" + OBJECT);
                storeReplaced();
                break;
            case HOT:
                visitMethodInsn(INVOKESTATIC, CONTEXT, "thread", "()L" + THREAD + ";", false);
                dup();
                local = newLocal(Type.getObjectType(THREAD));
                storeLocal(local);
                push(hook.tag);
                visitMethodInsn(INVOKESTATIC, CONTEXT, "enter", "(L" + THREAD + ";J)J", false);
                before = newLocal(Type.LONG_TYPE);
                storeLocal(before);
                mark(start);
                break;
            case SCOPE:
            case PULL:
            case RESULT:
            case LONG_RESULT:
                push(hook.index);
                callback(hook.begin, "I", OBJECT);
                local = newLocal(Type.getObjectType("java/lang/Object"));
                storeLocal(local);
                if (hook.kind == Hook.Kind.PULL) {
                    loadArg(hook.replaced - 1);
                    loadLocal(local);
                    visitMethodInsn(INVOKESTATIC, "io/smtt/marker/Scopes", hook.wrap, "(" + OBJECT + OBJECT + ")" + OBJECT, false);
                    storeReplaced();
                }
                mark(start);
                break;
            default:
                break;
        }
    }

    @Override
    protected void onMethodExit(int opcode) {
        if (opcode == ATHROW) {
            return;
        }
        switch (hook.kind) {
            case RETURN:
                dup();
                callback(hook.begin, OBJECT, "V");
                break;
            case EXIT:
                callback(hook.begin, "", "V");
                break;
            case HOT:
                exitHot();
                break;
            case SCOPE:
            case PULL:
                loadLocal(local);
                end("(" + OBJECT + ")V");
                break;
            case RESULT:
                loadLocal(local);
                end("(" + OBJECT + OBJECT + ")" + OBJECT);
                checkCast(returned);
                break;
            case LONG_RESULT:
                dup2();
                loadLocal(local);
                end("(J" + OBJECT + ")V");
                break;
            default:
                break;
        }
    }

    @Override
    public void visitMaxs(int stack, int locals) {
        if (local >= 0 && hook.kind != Hook.Kind.LONG_RESULT) {
            handler();
        }
        super.visitMaxs(stack, locals);
    }

    /** Leaves the scope when the method throws. */
    private void handler() {
        Label end = mark();
        visitTryCatchBlock(start, end, end, null);
        // The handler needs no argument, so it claims none: only the scope's own variable is still there.
        int arguments = instance ? 1 : 0;
        for (Type parameter : parameters) {
            arguments += parameter.getSize();
        }
        boolean hot = hook.kind == Hook.Kind.HOT;
        Object[] kept = new Object[arguments + (hot ? 2 : 1)];
        for (int i = 0; i < arguments; i++) {
            kept[i] = Opcodes.TOP;
        }
        kept[arguments] = hot ? THREAD : "java/lang/Object";
        if (hot) {
            kept[arguments + 1] = Opcodes.LONG;
        }
        // Past the adapter that renumbers locals: this frame is in final numbers already.
        mv.visitFrame(Opcodes.F_NEW, kept.length, kept, 1, new Object[] {"java/lang/Throwable"});
        if (hot) {
            exitHot();
        } else {
            loadLocal(local);
            String name = hook.kind == Hook.Kind.RESULT ? hook.abort : hook.end;
            mv.visitMethodInsn(INVOKESTATIC, hook.endCallbacks, name, "(" + OBJECT + ")V", false);
        }
        mv.visitInsn(ATHROW);
    }

    private void exitHot() {
        loadLocal(local);
        loadLocal(before);
        mv.visitMethodInsn(INVOKESTATIC, CONTEXT, "exit", "(L" + THREAD + ";J)V", false);
    }

    private void callback(String name, String first, String result) {
        StringBuilder descriptor = new StringBuilder("(").append(first);
        for (int argument : hook.arguments) {
            if (argument == 0) {
                loadThis();
                descriptor.append(OBJECT);
            } else {
                Type type = parameters[argument - 1];
                loadArg(argument - 1);
                descriptor.append(type.getSort() >= Type.ARRAY ? OBJECT : type.getDescriptor());
            }
        }
        invoke(name, descriptor.append(')').append(result).toString());
    }

    private void invoke(String name, String descriptor) {
        visitMethodInsn(INVOKESTATIC, hook.callbacks, name, descriptor, false);
    }

    private void end(String descriptor) {
        visitMethodInsn(INVOKESTATIC, hook.endCallbacks, hook.end, descriptor, false);
    }

    private void storeReplaced() {
        checkCast(parameters[hook.replaced - 1]);
        storeArg(hook.replaced - 1);
    }
}
