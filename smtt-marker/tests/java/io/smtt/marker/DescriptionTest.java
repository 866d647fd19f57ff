package io.smtt.marker;

import java.util.Arrays;
import java.util.Properties;
import org.apache.spark.scheduler.JobSucceeded$;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.StageInfo;
import scala.collection.Seq;
import scala.collection.immutable.Nil$;

final class DescriptionTest {
    private static Description stage(long id) {
        return new Description(FactForm.STAGE_DESCRIBED)
                .word(Contract.STAGE_DESCRIBED_RDD_ID, 5)
                .word(Contract.STAGE_DESCRIBED_JOB_ID, 4)
                .word(Contract.STAGE_DESCRIBED_TASKS, 3)
                .word(Contract.STAGE_DESCRIBED_STAGE_ATTEMPT, 2)
                .word(Contract.STAGE_DESCRIBED_STAGE_ID, id)
                .text(Contract.STAGE_DESCRIBED_NAME, "map")
                .text(Contract.STAGE_DESCRIBED_SQL_EXECUTION_ID, "7")
                .text(Contract.STAGE_DESCRIBED_SQL_DESCRIPTION, "select 1")
                .text(Contract.STAGE_DESCRIBED_JOB_DESCRIPTION, "")
                .text(Contract.STAGE_DESCRIBED_SUBMITTED_UNIX_MS, "9")
                .text(Contract.STAGE_DESCRIBED_COMPLETED_UNIX_MS, "")
                .text(Contract.STAGE_DESCRIBED_FAILURE, "");
    }

    @Test
    void fieldsAreInTheOrderOfTheFact() {
        Check.same("values", "[1, 2, 3, 4, 5, map, 7, select 1, , 9, , ]", Arrays.toString(stage(1).values()));
    }

    @Test
    void aMissingFieldIsRefused() {
        Check.refused("no field", () -> new Description(FactForm.RDD_DESCRIBED).values());
        Check.refused("a field of another fact", () -> stage(1).word(Contract.RDD_DESCRIBED_RDD_ID, 1));
    }

    @Test
    void aLongTextIsCutBeforeItIsKept() {
        char[] many = new char[1 << 20];
        Arrays.fill(many, 'x');
        Object[] values = stage(1).text(Contract.STAGE_DESCRIBED_NAME, new String(many)).values();
        Check.same("characters", 400, ((String) values[5]).length());
        // A character outside of the basic plane at the cut goes as a whole.
        String pair = new String(many, 0, 399) + "\ud83d\ude00";
        values = stage(1).text(Contract.STAGE_DESCRIBED_NAME, pair).values();
        Check.same("the text", pair.substring(0, 399), values[5]);
        String fits = new String(many, 0, 398) + "\ud83d\ude00";
        values = stage(1).text(Contract.STAGE_DESCRIBED_NAME, fits).values();
        Check.same("a text that fits", fits, values[5]);
    }

    @Test
    void theCatalogueGivesWhatChanged() {
        Catalogue catalogue = new Catalogue();
        catalogue.put(Catalogue.STAGE, "1", stage(1).values());
        catalogue.put(Catalogue.STAGE, "2", stage(2).values());
        Object[] all = catalogue.since(0);
        Check.same("descriptions", 2, all.length);
        long seen = (Long) ((Object[]) all[1])[0];
        catalogue.put(Catalogue.STAGE, "2", stage(2).values());
        Check.same("the same again", 0, catalogue.since(seen).length);
        catalogue.put(Catalogue.STAGE, "1", stage(1).text(Contract.STAGE_DESCRIBED_NAME, "filter").values());
        Object[] changed = catalogue.since(seen);
        Check.same("what changed", 1, changed.length);
        Check.same("its name", "filter", ((Object[]) changed[0])[7]);
    }

    private static Object[] description(String kind, Object... values) {
        Object[] all = new Object[values.length + 2];
        all[0] = 1L;
        all[1] = kind;
        System.arraycopy(values, 0, all, 2, values.length);
        return all;
    }

    private static Facts.Fact told(Object[] description) {
        return Facts.one(() -> Check.that("it is told", Descriptions.tell(Facts.teller(), description)));
    }

    @Test
    void descriptionsOfNeighbouringReleasesAreTold() {
        Facts.Fact before = told(description(Catalogue.STAGE, 1L, 2L, 3L, 4L, 5L, "map", "7", "select 1", ""));
        Check.same("fact", "stageDescribed", before.entry);
        Check.same("name", "map", before.text("name"));
        Check.same("what an earlier driver does not say", "", before.text("submitted_unix_ms"));
        Facts.Fact later = told(description(
                Catalogue.STAGE, 1L, 2L, 3L, 4L, 5L, "map", "7", "select 1", "", "9", "10", "a failure", "new", 11L));
        Check.same("the last that is known", "10", later.text("completed_unix_ms"));
        Facts.Fact job = told(description(Catalogue.JOB, 5L, 1000L, -1L, -1L, ""));
        Check.same("fact", "jobDescribed", job.entry);
        Check.same("begin", 1000L, job.word("started_unix_ms"));
    }

    @Test
    void whatIsNoDescriptionIsNotTold() {
        Object[][] none = {
            description("query", 1L, "x"),
            description(Catalogue.JOB, 5L),
            description(Catalogue.JOB, 5L, 1000L, "x", -1L, ""),
            description(Catalogue.STAGE, 1L, 2L, 3L, 4L, 5L, 6L),
        };
        for (Object[] description : none) {
            int told = Facts.during(() -> Check.that("refused", !Descriptions.tell(Facts.teller(), description))).size();
            Check.same("facts", 0, told);
        }
    }

    /** An executor with a marker of an earlier release asks with a number, and does not know jobs. */
    @Test
    @SuppressWarnings("unchecked")
    void onlyWhoAsksForJobsGetsThem() {
        Catalogue stages = new Catalogue();
        Catalogue jobs = new Catalogue();
        StageListener listener = new StageListener(stages, jobs);
        listener.onJobStart(new SparkListenerJobStart(3, 1000, (Seq<StageInfo>) (Object) Nil$.MODULE$, new Properties()));
        Check.same("others", 0, stages.since(0).length);
        Object[] running = (Object[]) jobs.since(0)[0];
        Check.same("a job that runs", "[1, job, 3, 1000, -1, -1, ]", Arrays.toString(running));
        listener.onJobEnd(new SparkListenerJobEnd(3, 1500, JobSucceeded$.MODULE$));
        Check.same("its end", "[2, job, 3, 1000, 1500, -1, ]", Arrays.toString((Object[]) jobs.since(1)[0]));
    }
}
