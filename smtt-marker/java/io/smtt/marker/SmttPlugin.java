package io.smtt.marker;

import java.net.URL;
import java.net.URLClassLoader;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * The Spark plugin: names, storage levels and lineage of RDDs exist on the driver only, and this brings them to the
 * executors. It also attaches the agent, which does the rest, to executors that do not have it.
 *
 * <p>{@code spark-submit --jars smtt-marker.jar --conf spark.plugins=io.smtt.marker.SmttPlugin}: Spark itself brings the
 * jar to the executors. docs/SPARK.md has the settings for all applications. With {@code -javaagent:smtt-marker.jar} the
 * agent starts with the JVM, which traces the first second too.
 *
 * <p>Only this class comes from the loader of the application's jars. That loader asks the class path first, where the
 * agent's jar appears at some time: classes of one package would then come from two loaders, and no longer see each
 * other. So this class names no other class of the marker, and takes all of them from one loader.
 */
public final class SmttPlugin implements SparkPlugin {
    private static final String PACKAGE = "io.smtt.marker.";
    /** Setting of the application: false where the plugin must not attach the agent. */
    private static final String ATTACH = "spark.smtt.attach";

    /** All classes of the marker where the class path does not have them. */
    private static ClassLoader own;

    @Override
    public DriverPlugin driverPlugin() {
        if (isLocal()) {
            // This JVM becomes an executor too.
            attach();
        }
        return (DriverPlugin) side("DriverSide");
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        attach();
        return (ExecutorPlugin) side("ExecutorSide");
    }

    private static boolean isLocal() {
        SparkConf conf = conf();
        return conf != null && conf.get("spark.master", "").matches("local(\\[.*)?");
    }

    /** The application's settings, or null. */
    private static SparkConf conf() {
        SparkEnv env = SparkEnv.get();
        return env == null ? null : env.conf();
    }

    /** Attaches the agent if it is not loaded. */
    private static void attach() {
        try {
            SparkConf conf = conf();
            if (conf == null || conf.getBoolean(ATTACH, true)) {
                load("SelfAttach").getMethod("ensure").invoke(null);
            }
        } catch (Throwable e) {
            warn("the agent was not attached", e);
        }
    }

    private static Object side(String name) {
        try {
            return load(name).getConstructor().newInstance();
        } catch (Throwable e) {
            warn("the plugin is switched off in this JVM", e);
            return null;
        }
    }

    /**
     * A class of the marker: the class path's, as the agent's are, or one of a loader of its own. With
     * {@code spark.executor.userClassPathFirst} this class may be a copy of one on the class path.
     */
    private static synchronized Class<?> load(String name) throws ClassNotFoundException {
        try {
            return ClassLoader.getSystemClassLoader().loadClass(PACKAGE + name);
        } catch (ClassNotFoundException onlyInTheApplicationsJars) {
            if (own == null) {
                own = new Own(SmttPlugin.class.getProtectionDomain().getCodeSource().getLocation());
            }
            return own.loadClass(PACKAGE + name);
        }
    }

    private static void warn(String text, Throwable cause) {
        System.err.println("smtt-marker: " + text + ": " + cause + " (the job runs unchanged)");
    }

    /** Loads the marker's classes from its jar, and all others as the class path does. */
    private static final class Own extends URLClassLoader {
        Own(URL jar) {
            super(new URL[] {jar}, SmttPlugin.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith(PACKAGE)) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded != null ? loaded : findClass(name);
            }
        }
    }
}
