package io.smtt.marker;

import java.lang.management.ManagementFactory;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;

/**
 * The identity of this JVM. Reported once application and executor are known, before all other facts, and on changes.
 */
final class ExecutorIdentity {
    private static String toldApplication;
    private static String toldAttempt;
    private static int toldMissing;
    private static volatile boolean known;

    private ExecutorIdentity() {}

    /** Reports the identity if not done yet; false while Spark itself does not know it, or where nothing is traced. */
    static boolean describe() {
        return known || tell(false);
    }

    /** Whether {@link #describe} has succeeded. */
    static boolean known() {
        return known;
    }

    /** A context of Spark started in this JVM: another application may begin in the same process (local mode). */
    static void refresh() {
        tell(false);
    }

    /** Reports the identity for a resync. */
    static void again() {
        tell(true);
    }

    /** Reports the identity again if another hook turned out to be missing. */
    static void refreshMissing() {
        if (known && MissingHooks.count() != toldMissing) {
            tell(true);
        }
    }

    /** The line of an executor's log about the marker. Hooks of classes that are loaded later are named when they miss. */
    static String summary() {
        SparkEnv env = SparkEnv.get();
        String missing = MissingHooks.count() == 0 ? "no hook missing" : "missing hooks: " + MissingHooks.names();
        return "on in executor " + env.executorId() + " of " + env.conf().get("spark.app.id", "an application without id")
                + ", Spark " + sparkVersion() + ", " + missing;
    }

    private static synchronized boolean tell(boolean always) {
        SparkEnv env = SparkEnv.get();
        if (env == null || env.conf() == null) {
            return known;
        }
        SparkConf conf = env.conf();
        if (!conf.contains("spark.app.id")) {
            return known;
        }
        String application = conf.get("spark.app.id");
        String attempt = conf.get("spark.app.attempt.id", "");
        // A driver sets the attempt after the id.
        if (!always && application.equals(toldApplication) && attempt.equals(toldAttempt)) {
            return known;
        }
        if (!SlotFile.create()) {
            return false;
        }
        Published.describe(application, conf.get("spark.app.name", ""), env.executorId());
        toldApplication = application;
        toldAttempt = attempt;
        toldMissing = MissingHooks.count();
        ThreadState.current().facts.begin(FactForm.EXECUTOR_DESCRIBED)
                .word(Contract.EXECUTOR_DESCRIBED_SLOTS_ADDRESS, SlotFile.address())
                .word(Contract.EXECUTOR_DESCRIBED_SLOT_COUNT, Contract.SLOT_COUNT)
                .word(Contract.EXECUTOR_DESCRIBED_START_UNIX_MS, ManagementFactory.getRuntimeMXBean().getStartTime())
                .word(Contract.EXECUTOR_DESCRIBED_HEAP_MAX_BYTES, Runtime.getRuntime().maxMemory())
                .word(Contract.EXECUTOR_DESCRIBED_MISSING_HOOKS, toldMissing)
                .word(Contract.EXECUTOR_DESCRIBED_FLAGS, Addresses.way())
                .text(Contract.EXECUTOR_DESCRIBED_APPLICATION_ID, application)
                .text(Contract.EXECUTOR_DESCRIBED_APPLICATION_NAME, conf.get("spark.app.name", ""))
                .text(Contract.EXECUTOR_DESCRIBED_EXECUTOR_ID, env.executorId())
                .text(Contract.EXECUTOR_DESCRIBED_HOST, host(env))
                .text(Contract.EXECUTOR_DESCRIBED_SPARK_VERSION, sparkVersion())
                .text(Contract.EXECUTOR_DESCRIBED_JAVA_VERSION, System.getProperty("java.version"))
                .text(Contract.EXECUTOR_DESCRIBED_MISSING_HOOK_NAMES, MissingHooks.names())
                .text(Contract.EXECUTOR_DESCRIBED_APPLICATION_ATTEMPT_ID, attempt)
                .text(Contract.EXECUTOR_DESCRIBED_QUEUE, conf.get("spark.yarn.queue", ""))
                .text(Contract.EXECUTOR_DESCRIBED_KUBERNETES_NAMESPACE, namespace(conf))
                .text(Contract.EXECUTOR_DESCRIBED_KUBERNETES_POD, pod())
                .tell();
        known = true;
        Background.start();
        return true;
    }

    /** Name of the pod; empty outside Kubernetes. Spark names executors' pods to them, and a pod's host name is its name. */
    private static String pod() {
        String named = System.getenv("SPARK_EXECUTOR_POD_NAME");
        if (named != null) {
            return named;
        }
        String host = System.getenv("KUBERNETES_SERVICE_HOST") == null ? null : System.getenv("HOSTNAME");
        return host == null ? "" : host;
    }

    /** Namespace of the pod; Spark's default is that of Kubernetes. */
    private static String namespace(SparkConf conf) {
        return pod().isEmpty() ? "" : conf.get("spark.kubernetes.namespace", "default");
    }

    private static String host(SparkEnv env) {
        try {
            return env.blockManager().blockManagerId().host();
        } catch (Throwable notYet) {
            return env.conf().get("spark.driver.host", "");
        }
    }

    private static String sparkVersion() {
        try {
            return org.apache.spark.package$.MODULE$.SPARK_VERSION();
        } catch (Throwable unknown) {
            return "";
        }
    }
}
