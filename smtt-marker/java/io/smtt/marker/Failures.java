package io.smtt.marker;

/** What ends an executor: what the JVM runs out of, and errors that no code catches. */
public final class Failures {
    /** The class name of an error and its message, at most; the fact's own limit cuts further. */
    private static final int TEXT_MAX = 1000;

    private Failures() {}

    /** Reports what the JVM runs out of. The slot file exists already. */
    static void start() {
        try {
            if (Native.followExhaustion(SlotFile.address()) != 0) {
                Warnings.once("this JVM does not report when it runs out of memory", null);
            }
        } catch (Throwable e) {
            // Such as a native library of an earlier marker.
            Warnings.once("when this JVM runs out of memory is not reported", e);
        }
    }

    /** Entry of Spark's handler of errors that no code caught: it ends the JVM next, or the thread. */
    public static void uncaught(Object error) {
        try {
            if (error == null) {
                return;
            }
            // The hook runs in the driver too, and in JVMs without a library.
            if (!ExecutorIdentity.known()) {
                return;
            }
            String text = error.toString();
            ThreadState.current().facts.begin(FactForm.RESOURCE_EXHAUSTED)
                    .word(Contract.RESOURCE_EXHAUSTED_SOURCE, Contract.EXHAUSTED_UNCAUGHT)
                    .word(Contract.RESOURCE_EXHAUSTED_FLAGS, 0)
                    .text(Contract.RESOURCE_EXHAUSTED_DESCRIPTION, text.length() > TEXT_MAX ? text.substring(0, TEXT_MAX) : text)
                    .tell();
        } catch (Throwable e) {
            // Perhaps another OutOfMemoryError: the JVM itself has reported the first one.
            Scopes.failed(e);
        }
    }
}
