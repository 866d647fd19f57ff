package io.smtt.marker;

import java.util.Arrays;

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
}
