package io.smtt.marker;

import java.lang.reflect.Method;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/** Hooks around Python workers: which process serves which task, and what the exchange with it pulls. */
public final class Python {
    private Python() {}

    /**
     * The iterator that is written to a Python worker. What it computes is upstream of Python, on the task's thread
     * or on a writer thread of its own, and has the reads that are open now.
     */
    public static Object input(Object iterator) {
        try {
            ThreadState state = ThreadState.currentInTask();
            Pipeline pipeline = state.pipeline;
            if (pipeline == null || state.outside || iterator == null) {
                return iterator;
            }
            Pipeline upstream = pipeline.splitUpstream(state.hot());
            state.hot(Words.COMPUTE_TAG | pipeline.rdd);
            return new PullIterator((Iterator<?>) iterator, upstream, state);
        } catch (Throwable e) {
            Scopes.failed(e);
            return iterator;
        }
    }

    /** Return of {@code PythonWorkerFactory.create}: a new worker, or one from the pool. */
    public static void created(Object result) {
        try {
            ThreadState state = ThreadState.currentInTask();
            Object second = ((Tuple2<?, ?>) result)._2();
            if (state.task == null || !(second instanceof Option) || !((Option<?>) second).isDefined()) {
                return;
            }
            long pid = pid(((Option<?>) second).get());
            if (pid > 0) {
                state.task.pythonWorker(state, pid);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** A number in Spark 3, a ProcessHandle in 4.0, a handle of Spark's own since. */
    private static long pid(Object worker) throws Exception {
        if (worker instanceof Number) {
            return ((Number) worker).longValue();
        }
        Class<?> handle = Class.forName("java.lang.ProcessHandle");
        if (handle.isInstance(worker)) {
            return (Long) handle.getMethod("pid").invoke(worker);
        }
        for (String name : new String[] {"pid", "processHandle", "handle"}) {
            try {
                Method method = worker.getClass().getDeclaredMethod(name);
                method.setAccessible(true);
                return pid(method.invoke(worker));
            } catch (NoSuchMethodException next) {
                // Another name in another version.
            }
        }
        MissingHooks.add("PythonWorkerHandle.pid", null);
        return -1;
    }
}
