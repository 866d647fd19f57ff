package io.smtt.marker;

import java.lang.instrument.Instrumentation;
import java.util.ArrayList;
import java.util.List;

/**
 * Entry of the Java agent, at the start of a JVM or attached to a running one.
 *
 * <p>Nothing here may stop the JVM: without the native library, without Spark's ASM, with a class that does not
 * fit, one warning is printed and the job runs unchanged.
 */
public final class Agent {
    /** Classes that rewritten code calls; they must be usable before it runs. */
    private static final String[] CALLBACKS = {
        "Context", "Scopes", "Tasks", "TaskNames", "Reads", "Blocks", "BlockRecord", "Pages", "TaskMemory", "Python", "Calls", "Frame", "Task",
        "TaskFrame", "ThreadState", "SlotFile", "FactWriter", "FactForm", "FactLog", "Pipeline", "HookTable", "ExecutorIdentity", "Background",
        "PullIterator", "ExactIterator", "Consumers", "Peaks", "Addresses", "HeapHandle", "Samples", "Columns", "Pace",
        "ArrayLayout", "Memory", "Contract", "ThreadContext", "Published", "MemoryPeaks", "MemoryFigures", "Failures",
    };

    private static Transformer transformer;

    private Agent() {}

    /** Called before the application's main method. */
    public static void premain(String arguments, Instrumentation instrumentation) {
        start(arguments, instrumentation);
    }

    /**
     * Called in a running JVM: rewrites classes that are loaded already, and reports tasks and blocks that exist
     * already.
     */
    public static void agentmain(String arguments, Instrumentation instrumentation) {
        boolean first = transformer == null;
        start(arguments, instrumentation);
        if (!first || !Transformer.installed()) {
            return;
        }
        try {
            retransform(instrumentation);
            Attached.tellExisting();
        } catch (Throwable e) {
            Warnings.once("attached, but earlier tasks and blocks are unknown", e);
        }
    }

    private static synchronized void start(String arguments, Instrumentation instrumentation) {
        if (transformer != null) {
            return;
        }
        try {
            Options.parse(arguments);
            FactLog.open();
            if (!Native.load()) {
                return;
            }
            transformer = new Transformer();
            instrumentation.addTransformer(transformer, true);
            transformer.installed(true);
            try {
                // After the transformer: checking them may load classes of Spark.
                for (String name : CALLBACKS) {
                    Class.forName("io.smtt.marker." + name);
                }
            } catch (Throwable e) {
                transformer.off();
                retransform(instrumentation);
                throw e;
            }
        } catch (Throwable e) {
            Warnings.once("the agent is switched off in this JVM", e);
        }
    }

    /**
     * Rewrites loaded classes, or (with the transformer off) restores them. One at a time, so that a failure affects
     * one.
     */
    private static void retransform(Instrumentation instrumentation) {
        List<Class<?>> classes = new ArrayList<>();
        for (Class<?> loaded : instrumentation.getAllLoadedClasses()) {
            if (HookTable.of(loaded.getName().replace('.', '/')) != null) {
                classes.add(loaded);
            }
        }
        for (Class<?> loaded : classes) {
            try {
                instrumentation.retransformClasses(loaded);
            } catch (Throwable e) {
                MissingHooks.add(loaded.getSimpleName(), e);
            }
        }
    }
}
