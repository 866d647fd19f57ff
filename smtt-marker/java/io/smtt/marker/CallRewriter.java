package io.smtt.marker;

import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;

/** Replaces one kind of call inside a method by a static one with the receiver in front. */
final class CallRewriter extends MethodVisitor {
    private final Hook hook;
    private final Runnable found;

    CallRewriter(Hook hook, MethodVisitor next, Runnable found) {
        super(Opcodes.ASM9, next);
        this.hook = hook;
        this.found = found;
    }

    @Override
    public void visitMethodInsn(int opcode, String owner, String name, String descriptor, boolean isInterface) {
        boolean virtual = opcode == Opcodes.INVOKEVIRTUAL || opcode == Opcodes.INVOKEINTERFACE;
        if (virtual && owner.equals(hook.callOwner) && name.equals(hook.callName) && descriptor.equals(hook.callDescriptor)) {
            found.run();
            super.visitMethodInsn(Opcodes.INVOKESTATIC, hook.callbacks, hook.begin, "(L" + owner + ";" + descriptor.substring(1), false);
        } else {
            super.visitMethodInsn(opcode, owner, name, descriptor, isInterface);
        }
    }
}
