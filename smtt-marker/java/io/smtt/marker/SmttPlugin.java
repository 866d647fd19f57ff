package io.smtt.marker;

import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * The Spark plugin: names, storage levels and lineage of RDDs exist on the driver only, and this brings them to the
 * executors. The agent does the rest.
 *
 * <p>Two lines of configuration (spark-defaults.conf, or {@code --conf} per application):
 *
 * <pre>
 * spark.plugins.defaultList           io.smtt.marker.SmttPlugin
 * spark.executor.defaultJavaOptions   -javaagent:/usr/lib/smtt/smtt-marker.jar
 * </pre>
 *
 * The agent puts its jar on its JVM's class path, so executors need nothing else. The driver needs the class too: add
 * {@code spark.driver.defaultJavaOptions -javaagent:/usr/lib/smtt/smtt-marker.jar} (which also is what traces
 * {@code local[*]} mode, where the driver is the executor), or {@code spark.driver.extraClassPath}
 * {@code /usr/lib/smtt/smtt-marker.jar}. With {@code --jars} the plugin alone works, without the agent.
 */
public final class SmttPlugin implements SparkPlugin {
    @Override
    public DriverPlugin driverPlugin() {
        return (DriverPlugin) side("DriverSide");
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return (ExecutorPlugin) side("ExecutorSide");
    }

    /**
     * One side, from the class path's loader where it is there: with {@code spark.executor.userClassPathFirst} this
     * class may be a second copy, whose static state is not the agent's.
     */
    private static Object side(String name) {
        try {
            try {
                return create(ClassLoader.getSystemClassLoader(), name);
            } catch (ClassNotFoundException onlyInTheApplicationsJars) {
                return create(SmttPlugin.class.getClassLoader(), name);
            }
        } catch (Throwable e) {
            Warnings.once("the plugin is switched off in this JVM", e);
            return null;
        }
    }

    private static Object create(ClassLoader loader, String name) throws Exception {
        return loader.loadClass("io.smtt.marker." + name).getConstructor().newInstance();
    }
}
