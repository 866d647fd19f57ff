package io.smtt.marker;

import java.util.Collections;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;

/** The plugin in the driver: collects descriptions from Spark's listener bus, and answers the executors' questions. */
public final class DriverSide implements DriverPlugin {
    /** The plugin of the context in this JVM: in local mode the executor reads it without a message. */
    private static volatile DriverSide local;

    /** RDDs and stages. */
    private final Catalogue catalogue = new Catalogue();
    /** Apart, because an executor's marker of an earlier release does not know them. */
    private final Catalogue jobs = new Catalogue();
    /** Null where no history is written. */
    private History history;

    /** Made by {@link SmttPlugin}. */
    public DriverSide() {}

    /** RDDs and stages of a driver in this JVM, or null. */
    static Catalogue local() {
        DriverSide driver = local;
        return driver == null ? null : driver.catalogue;
    }

    /** Jobs of a driver in this JVM, or null. */
    static Catalogue localJobs() {
        DriverSide driver = local;
        return driver == null ? null : driver.jobs;
    }

    @Override
    public Map<String, String> init(SparkContext context, PluginContext pluginContext) {
        try {
            listen(context, new StageListener(catalogue, jobs));
            local = this;
        } catch (Throwable e) {
            Warnings.once("RDDs will have no names", e);
        }
        try {
            history = History.start(context);
        } catch (Throwable e) {
            Warnings.once("no history is written", e);
        }
        return Collections.emptyMap();
    }

    /**
     * In the queue of Spark's own listener, which every application has. In one of its own a listener costs the driver a
     * wake-up for each event of each task.
     */
    private static void listen(SparkContext context, StageListener listener) {
        try {
            context.listenerBus().addToStatusQueue(listener);
        } catch (LinkageError anotherSpark) {
            context.addSparkListener(listener);
        }
    }

    /**
     * An executor asks: everything described since the number that it has seen. The number alone asks for RDDs and stages, as
     * each release of the marker does; with a kind before it, for jobs.
     */
    @Override
    public Object receive(Object message) {
        try {
            if (message instanceof Object[]) {
                return jobs.since((Long) ((Object[]) message)[1]);
            }
            return catalogue.since((Long) message);
        } catch (Throwable e) {
            Warnings.once("an executor's question was not understood", e);
            return new Object[0];
        }
    }

    @Override
    public void shutdown() {
        if (local == this) {
            local = null;
        }
        if (history != null) {
            history.stop();
        }
    }
}
