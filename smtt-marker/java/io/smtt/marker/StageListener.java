package io.smtt.marker;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.storage.RDDInfo;
import org.apache.spark.storage.StorageLevel;
import scala.collection.Iterable;
import scala.collection.Iterator;

/**
 * Takes RDD and stage descriptions from the driver's listener bus.
 *
 * <p>Methods that return a Scala {@code Seq} are called by reflection: the type is another one in Scala 2.12 and
 * 2.13, and a LinkageError in a listener would stop the whole SparkContext.
 */
final class StageListener extends SparkListener {
    private static final int JOBS_KEPT = 20_000;

    private final Catalogue catalogue;
    private final Map<Integer, Integer> jobOfStage = new HashMap<>();

    StageListener(Catalogue catalogue) {
        this.catalogue = catalogue;
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
    }

    @Override
    public void onStageSubmitted(SparkListenerStageSubmitted event) {
        describe(event.stageInfo());
    }

    /** Again at the end: a storage level may have been set meanwhile. */
    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
        describe(event.stageInfo());
    }

    private void describe(StageInfo stage) {
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
            catalogue.put(Catalogue.STAGE, stage.stageId() + "." + stage.attemptNumber(),
                    (long) stage.stageId(), (long) stage.attemptNumber(), (long) stage.numTasks(), (long) job, terminal, stage.name());
        } catch (Throwable e) {
            Warnings.once("a stage could not be described", e);
        }
    }

    private void describe(RDDInfo rdd) throws Exception {
        StorageLevel level = rdd.storageLevel();
        StringBuilder parents = new StringBuilder();
        for (Iterator<?> ids = sequence(rdd, "parentIds"); ids.hasNext(); ) {
            parents.append(parents.length() == 0 ? "" : ",").append(ids.next());
        }
        catalogue.put(Catalogue.RDD, Integer.toString(rdd.id()),
                (long) rdd.id(), (long) rdd.numPartitions(), bits(level),
                rdd.name() == null ? "" : rdd.name(), rdd.callSite() == null ? "" : rdd.callSite(), level.description(), parents.toString());
    }

    /** See {@code smtt_common::event::marker::storage_level}. */
    private static long bits(StorageLevel level) {
        boolean kept = level.useMemory() || level.useDisk();
        return (level.useDisk() ? 1 : 0) | (level.useMemory() ? 2 : 0) | (level.useOffHeap() ? 4 : 0) | (kept && level.deserialized() ? 8 : 0)
                | (kept ? (long) level.replication() << 8 : 0);
    }

    private static Iterator<?> sequence(Object of, String method) throws Exception {
        return ((Iterable<?>) of.getClass().getMethod(method).invoke(of)).iterator();
    }
}
