package io.smtt.marker;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.Metric;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.LiveListenerBus;
import org.apache.spark.scheduler.SparkListenerInterface;

/**
 * The application's history, written while it runs: {@code spark.smtt.history.dir} names a store of {@code smtt-history}
 * in any file system that Spark can reach. docs/HISTORY.md describes the parts.
 *
 * <p>The listener has a queue of its own, so that it cannot make Spark drop events of others, and only fills a bounded
 * buffer; a thread writes it. Neither a store that fails nor one that hangs delays the job.
 */
final class History {
    /** Setting of the application: URI of the store. */
    static final String STORE = "spark.smtt.history.dir";
    /** Name of the listener's queue, as in Spark's metrics. */
    private static final String QUEUE = "smtt-history";
    /** How long the end of the application may wait for its last part. */
    private static final long END_MS = 5_000;
    /** How long it may wait for events that are on their way. */
    private static final long DRAIN_MS = 2_000;
    /** How long events gather after the queue was empty: a thread that is woken for each of them costs more than what it does. */
    private static final long GATHER_NS = 5_000_000;

    private final LiveListenerBus bus;
    private final HistoryParts parts;

    History(LiveListenerBus bus, HistoryParts parts) {
        this.bus = bus;
        this.parts = parts;
    }

    /** Begins the history if the application's settings ask for one; else null. */
    static History start(SparkContext context) {
        String store = context.conf().get(STORE, "");
        if (store.isEmpty()) {
            return null;
        }
        try {
            // Before anything waits for it.
            Class.forName("org.apache.parquet.hadoop.ParquetWriter");
            LiveListenerBus bus = context.listenerBus();
            HistoryParts parts = new HistoryParts(new HistoryStore(new Path(store), context.hadoopConfiguration()),
                    () -> bus.metrics().metricRegistry().counter("queue." + QUEUE + ".numDroppedEvents").getCount());
            HistoryListener listener = new HistoryListener(context.conf(), context.hadoopConfiguration(), parts);
            listener.start();
            parts.start();
            bus.addToQueue(guarded(listener, parts, bus), QUEUE);
            return new History(bus, parts);
        } catch (ClassNotFoundException | LinkageError e) {
            Warnings.once("no history is written: this Spark lacks a class that it needs, such as Parquet's", e);
        } catch (Throwable e) {
            Warnings.once("no history is written to " + store, e);
        }
        return null;
    }

    /**
     * A listener from which nothing escapes: an error on a queue's thread, such as that of a missing method, stops the
     * application. After each event that leaves the queue empty it lets others gather.
     */
    static SparkListenerInterface guarded(SparkListenerInterface listener, HistoryParts parts, LiveListenerBus bus) {
        AtomicBoolean isOff = new AtomicBoolean();
        InvocationHandler handler = (proxy, method, arguments) -> {
            if (method.getDeclaringClass() == Object.class) {
                return method.invoke(listener, arguments);
            }
            if (isOff.get()) {
                parts.lostEvent();
                return null;
            }
            try {
                method.invoke(listener, arguments);
                if (isEmpty(bus)) {
                    LockSupport.parkNanos(GATHER_NS);
                }
                return null;
            } catch (InvocationTargetException thrown) {
                Throwable e = thrown.getCause();
                parts.lostEvent();
                if (e instanceof LinkageError) {
                    isOff.set(true);
                } else if (e instanceof InterruptedException) {
                    Thread.currentThread().interrupt();
                    return null;
                }
                Warnings.once("an event is not in the history", e);
                return null;
            }
        };
        return (SparkListenerInterface) Proxy.newProxyInstance(History.class.getClassLoader(),
                new Class<?>[] {SparkListenerInterface.class}, handler);
    }

    /** Whether no event waits in the queue, whose length Spark measures; false where this cannot be told. */
    private static boolean isEmpty(LiveListenerBus bus) {
        try {
            Metric length = bus.metrics().metricRegistry().getMetrics().get("queue." + QUEUE + ".size");
            return length instanceof Gauge && Integer.valueOf(0).equals(((Gauge<?>) length).getValue());
        } catch (Throwable e) {
            Warnings.once("the history's thread is woken for each event", e);
            return false;
        }
    }

    /** Writes what is left, within a bound. */
    void stop() {
        try {
            // Spark 4 stops its plugins before the listener bus.
            try {
                bus.waitUntilEmpty(DRAIN_MS);
            } catch (java.util.concurrent.TimeoutException another) {
                // It waits for every queue: a listener of the application may be slow.
            }
            parts.finish(System.nanoTime() + END_MS * 1_000_000);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            Warnings.once("the end of the history may be missing", e);
        } catch (Throwable e) {
            Warnings.once("the end of the history may be missing", e);
        }
    }
}
