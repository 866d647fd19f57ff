package io.smtt.marker;

final class FactLogTest {
    @Test
    void aLineHasEveryField() {
        Facts.Fact told = Facts.one(() -> Facts.teller().facts.begin(FactForm.SPAN)
                .word(Contract.SPAN_TASK_ATTEMPT_ID, 5)
                .word(Contract.SPAN_ACTIVITY, Contract.ACTIVITY_SORT)
                .word(Contract.SPAN_START_MONOTONIC_NS, 100)
                .word(Contract.SPAN_DURATION_NS, 20)
                .word(Contract.SPAN_RDD_ID, -1)
                .text(Contract.SPAN_NAME, "a \"quoted\"\nname").tell());
        Check.same("line", "span task_attempt_id=5 activity=3 start_monotonic_ns=100 duration_ns=20 rdd_id=-1"
                + " name=\"a 'quoted' name\" thread=\"" + Thread.currentThread().getName() + "\"", told.line.substring(told.line.indexOf(' ') + 1));
    }

    @Test
    void rangesAreAddressAndLength() {
        Facts.Fact told = Facts.one(() -> Facts.teller().facts.begin(FactForm.BLOCK_STORED)
                .word(Contract.BLOCK_STORED_RDD_ID, 1)
                .word(Contract.BLOCK_STORED_PARTITION, 2)
                .word(Contract.BLOCK_STORED_SIZE_BYTES, 48)
                .word(Contract.BLOCK_STORED_FLAGS, Contract.BLOCK_SERIALIZED)
                .word(Contract.BLOCK_STORED_TASK_ATTEMPT_ID, 4)
                .word(Contract.BLOCK_STORED_RANGE_TOTAL, 2)
                .word(Contract.BLOCK_STORED_RANGE_FIRST, 0)
                .word(Contract.BLOCK_STORED_RANGE_COUNT, 2)
                .range(0xab000, 16).range(0xcd000, 32)
                .text(Contract.BLOCK_STORED_BLOCK_ID, "rdd_1_2").tell());
        Check.same("ranges", "ab000+16,cd000+32", told.text("ranges"));
        Check.same("string after the ranges", "rdd_1_2", told.text("block_id"));
        Check.that("the line is whole: " + told.line, !told.line.contains("BROKEN"));
    }

    @Test
    void aHotWordIsHexadecimal() {
        Facts.Fact told = Facts.one(() -> Facts.teller().facts.begin(FactForm.PYTHON_WORKER)
                .word(Contract.PYTHON_WORKER_PID, 77)
                .word(Contract.PYTHON_WORKER_TASK_ATTEMPT_ID, 5)
                .word(Contract.PYTHON_WORKER_HOT, Words.COMPUTE_TAG)
                .word(Contract.PYTHON_WORKER_STAGE_ID, 1)
                .word(Contract.PYTHON_WORKER_STAGE_ATTEMPT, 0).tell());
        Check.same("hot", "100000000000000", told.text("hot"));
        Check.same("pid", 77, told.word("pid"));
    }
}
