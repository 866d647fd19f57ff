package io.smtt.marker;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.storage.RDDInfo;
import org.apache.spark.storage.StorageLevel;
import scala.Option;
import scala.collection.Iterable;
import scala.collection.Iterator;

/**
 * Takes descriptions of RDDs, stages and jobs from the driver's listener bus.
 *
 * <p>Methods that return a Scala {@code Seq} are called by reflection: the type is another one in Scala 2.12 and
 * 2.13, and a LinkageError in a listener would stop the whole SparkContext.
 */
final class StageListener extends SparkListener {
    private static final int JOBS_KEPT = 20_000;
    private static final int QUERIES_KEPT = 2_000;
    private static final String QUERY_STARTED =
            "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart";

    private final Catalogue catalogue;
    private final Catalogue jobs;
    private final Map<Integer, Integer> jobOfStage = new HashMap<>();
    /** Begin, and SQL execution or -1, of the jobs that run, the oldest first. */
    private final Map<Integer, long[]> jobsRunning = new LinkedHashMap<>();
    /** Properties of each stage attempt that runs, for its second description. */
    private final Map<String, Properties> running = new LinkedHashMap<>();
    /** Description of each SQL execution by its id, the oldest first. */
    private final Map<String, String> queries = new LinkedHashMap<>();

    StageListener(Catalogue catalogue, Catalogue jobs) {
        this.catalogue = catalogue;
        this.jobs = jobs;
    }

    @Override
    public void onJobStart(SparkListenerJobStart job) {
        try {
            if (jobOfStage.size() > JOBS_KEPT) {
                jobOfStage.clear();
            }
            for (Iterator<?> ids = sequence(job, "stageIds"); ids.hasNext(); ) {
                // A stage that several jobs share belongs to the first.
                jobOfStage.putIfAbsent(((Number) ids.next()).intValue(), job.jobId());
            }
        } catch (Throwable e) {
            Warnings.once("stages will have no job", e);
        }
        long query = -1;
        try {
            String id = property(job.properties(), "spark.sql.execution.id");
            query = id.isEmpty() ? -1 : Long.parseLong(id);
        } catch (NumberFormatException notOfSpark) {
            // The application has set the property itself.
        }
        jobsRunning.put(job.jobId(), new long[] {job.time(), query});
        if (jobsRunning.size() > JOBS_KEPT) {
            jobsRunning.remove(jobsRunning.keySet().iterator().next());
        }
        describe(job.jobId(), jobsRunning.get(job.jobId()), -1, "");
    }

    @Override
    public void onJobEnd(SparkListenerJobEnd event) {
        long[] begin = jobsRunning.remove(event.jobId());
        if (begin != null) {
            describe(event.jobId(), begin, event.time(), failure(event));
        }
    }

    /** Why a job failed, never empty; empty where it did not. The class of a failure's result is private to Spark. */
    private static String failure(SparkListenerJobEnd event) {
        Object result = event.jobResult();
        if (!result.getClass().getName().endsWith(".JobFailed")) {
            return "";
        }
        try {
            Throwable cause = (Throwable) result.getClass().getMethod("exception").invoke(result);
            return String.valueOf(cause.getMessage());
        } catch (Throwable e) {
            return "not known";
        }
    }

    private void describe(int job, long[] begin, long ended, String failure) {
        try {
            jobs.put(Catalogue.JOB, Integer.toString(job),
                    new Description(FactForm.JOB_DESCRIBED)
                            .word(Contract.JOB_DESCRIBED_JOB_ID, job)
                            .word(Contract.JOB_DESCRIBED_STARTED_UNIX_MS, begin[0])
                            .word(Contract.JOB_DESCRIBED_ENDED_UNIX_MS, ended)
                            .word(Contract.JOB_DESCRIBED_SQL_EXECUTION_ID, begin[1])
                            .text(Contract.JOB_DESCRIBED_FAILURE, failure)
                            .values());
        } catch (Throwable e) {
            Warnings.once("jobs will have no state", e);
        }
    }

    private static String millis(Option<?> time) {
        return time.isEmpty() ? "" : time.get().toString();
    }

    /** SQL events, which the listener bus delivers before the query's first job; their classes may be absent. */
    @Override
    public void onOtherEvent(SparkListenerEvent event) {
        try {
            if (event.getClass().getName().equals(QUERY_STARTED)) {
                Object id = event.getClass().getMethod("executionId").invoke(event);
                Object description = event.getClass().getMethod("description").invoke(event);
                queries.put(id.toString(), String.valueOf(description));
                if (queries.size() > QUERIES_KEPT) {
                    queries.remove(queries.keySet().iterator().next());
                }
            }
        } catch (Throwable e) {
            Warnings.once("SQL executions will have no description", e);
        }
    }

    @Override
    public void onStageSubmitted(SparkListenerStageSubmitted event) {
        if (event.properties() != null) {
            running.put(key(event.stageInfo()), event.properties());
            if (running.size() > JOBS_KEPT) {
                running.remove(running.keySet().iterator().next());
            }
        }
        describe(event.stageInfo(), event.properties());
    }

    /** Again at the end: a storage level may have been set meanwhile. */
    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
        describe(event.stageInfo(), running.remove(key(event.stageInfo())));
    }

    private static String key(StageInfo stage) {
        return stage.stageId() + "." + stage.attemptNumber();
    }

    private static String property(Properties properties, String name) {
        return properties == null ? "" : properties.getProperty(name, "");
    }

    private void describe(StageInfo stage, Properties properties) {
        try {
            long terminal = -1;
            for (Iterator<?> rdds = sequence(stage, "rddInfos"); rdds.hasNext(); ) {
                RDDInfo rdd = (RDDInfo) rdds.next();
                // The stage's own RDD comes first, its narrow ancestors after it.
                terminal = terminal < 0 ? rdd.id() : terminal;
                describe(rdd);
            }
            if (stage.submissionTime().isEmpty()) {
                // Spark had nothing left to compute for this attempt, and lists it as skipped.
                return;
            }
            int job = jobOfStage.getOrDefault(stage.stageId(), -1);
            String query = property(properties, "spark.sql.execution.id");
            catalogue.put(Catalogue.STAGE, key(stage),
                    new Description(FactForm.STAGE_DESCRIBED)
                            .word(Contract.STAGE_DESCRIBED_STAGE_ID, stage.stageId())
                            .word(Contract.STAGE_DESCRIBED_STAGE_ATTEMPT, stage.attemptNumber())
                            .word(Contract.STAGE_DESCRIBED_TASKS, stage.numTasks())
                            .word(Contract.STAGE_DESCRIBED_JOB_ID, job)
                            .word(Contract.STAGE_DESCRIBED_RDD_ID, terminal)
                            .text(Contract.STAGE_DESCRIBED_NAME, stage.name())
                            .text(Contract.STAGE_DESCRIBED_SQL_EXECUTION_ID, query)
                            .text(Contract.STAGE_DESCRIBED_SQL_DESCRIPTION, queries.getOrDefault(query, ""))
                            .text(Contract.STAGE_DESCRIBED_JOB_DESCRIPTION,
                                    property(properties, "spark.job.description"))
                            .text(Contract.STAGE_DESCRIBED_SUBMITTED_UNIX_MS, millis(stage.submissionTime()))
                            .text(Contract.STAGE_DESCRIBED_COMPLETED_UNIX_MS, millis(stage.completionTime()))
                            .text(Contract.STAGE_DESCRIBED_FAILURE,
                                    stage.failureReason().isEmpty() ? "" : stage.failureReason().get())
                            .values());
        } catch (Throwable e) {
            Warnings.once("a stage could not be described", e);
        }
    }

    void describe(RDDInfo rdd) throws Exception {
        PlanNode node = PlanNode.of(rdd);
        StorageLevel level = rdd.storageLevel();
        StringBuilder parents = new StringBuilder();
        for (Iterator<?> ids = sequence(rdd, "parentIds"); ids.hasNext(); ) {
            parents.append(parents.length() == 0 ? "" : ",").append(ids.next());
        }
        catalogue.put(Catalogue.RDD, Integer.toString(rdd.id()),
                new Description(FactForm.RDD_DESCRIBED)
                        .word(Contract.RDD_DESCRIBED_RDD_ID, rdd.id())
                        .word(Contract.RDD_DESCRIBED_PARTITIONS, rdd.numPartitions())
                        .word(Contract.RDD_DESCRIBED_STORAGE_LEVEL, bits(level))
                        .text(Contract.RDD_DESCRIBED_NAME, rdd.name())
                        .text(Contract.RDD_DESCRIBED_CALL_SITE, rdd.callSite())
                        .text(Contract.RDD_DESCRIBED_STORAGE_LEVEL_TEXT, level.description())
                        .text(Contract.RDD_DESCRIBED_PARENTS, parents.toString())
                        .text(Contract.RDD_DESCRIBED_NODE, node.name)
                        .text(Contract.RDD_DESCRIBED_NODE_ID, node.id)
                        .values());
    }

    private static long bits(StorageLevel level) {
        boolean kept = level.useMemory() || level.useDisk();
        return (level.useDisk() ? Contract.STORAGE_LEVEL_DISK : 0)
                | (level.useMemory() ? Contract.STORAGE_LEVEL_MEMORY : 0)
                | (level.useOffHeap() ? Contract.STORAGE_LEVEL_OFF_HEAP : 0)
                | (kept && level.deserialized() ? Contract.STORAGE_LEVEL_DESERIALIZED : 0)
                | (kept ? (long) level.replication() << Contract.STORAGE_LEVEL_REPLICATION_SHIFT : 0);
    }

    private static Iterator<?> sequence(Object of, String method) throws Exception {
        return ((Iterable<?>) of.getClass().getMethod(method).invoke(of)).iterator();
    }
}
