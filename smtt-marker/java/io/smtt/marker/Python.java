package io.smtt.marker;

import java.lang.reflect.Method;
import java.util.concurrent.ConcurrentHashMap;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;

/** Hooks around Python workers: which process serves which task, and what the exchange with it pulls. */
public final class Python {
    /** A service of a worker process to a task. */
    static final class Service {
        final Task task;
        final long pid;
        private final Object worker;

        Service(Task task, long pid, Object worker) {
            this.task = task;
            this.pid = pid;
            this.worker = worker;
        }

        /** True once, and only while no other task has got the worker from Spark's pool. */
        boolean end() {
            return SERVICES.remove(worker, this);
        }
    }

    /** The services that go on, by Spark's handle of the worker. A task's end ends all of its services. */
    private static final ConcurrentHashMap<Object, Service> SERVICES = new ConcurrentHashMap<>();

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
                Service service = new Service(state.task, pid, ((Tuple2<?, ?>) result)._1());
                SERVICES.put(service.worker, service);
                state.task.pythonWorker(state, service);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /**
     * Entry of {@code PythonWorkerFactory.releaseWorker}: the worker has sent all that it computed, and goes back to Spark's
     * pool. The task may run on without it, and another task may get the worker meanwhile.
     */
    public static void released(Object worker) {
        try {
            Service service = worker == null ? null : SERVICES.get(worker);
            if (service != null) {
                service.task.releasePython(ThreadState.current(), service);
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
