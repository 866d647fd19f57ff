package io.smtt.marker;

final class WordsTest {
    private static final long READ = Words.tag(Contract.ACTIVITY_CACHE_READ, Contract.ACCESS_READ, Contract.REGION_STORAGE);

    @Test
    void everyFieldHasItsBits() {
        Check.same("hot word", 0x0850_0000_0812_3456L, READ | Words.rdd(7, 0x12_3456));
        Check.same("highest codes", 0xfff0_0000_0000_0000L, Words.tag(255, 3, 3));
        Check.same("user code", 0x0100_0000_0000_0000L, Words.COMPUTE_TAG);
    }

    @Test
    void fieldsAreReadBack() {
        long word = READ | Words.rdd(7, 0x12_3456);
        Check.same("activity", Contract.ACTIVITY_CACHE_READ, Words.activity(word));
        Check.same("activity of the highest code", 255, Words.activity(Words.tag(255, 0, 0)));
        Check.same("RDD", 7, Words.rddId(word));
        Check.same("partition", 0x12_3456, Words.partition(word));
        Check.same("no RDD", -1, Words.rddId(READ));
    }

    @Test
    void tagAndRddDoNotOverlap() {
        Check.same("bits of both", 0, Words.tag(255, 3, 3) & Words.RDD_BITS);
        Check.same("RDD without a tag", Words.rdd(7, 3), (READ | Words.rdd(7, 3)) & Words.RDD_BITS);
    }

    @Test
    void numbersThatDoNotFit() {
        Check.same("an RDD id that is too large", 0xff_ffff, Words.rdd(Integer.MAX_VALUE, 0) >>> 24);
        Check.same("the largest that fits", 0xff_fffeL, Words.rdd(0xff_fffd, 0) >>> 24);
        Check.same("a partition keeps its low bits", 0x2L, Words.rdd(7, 0x100_0002) & 0xff_ffff);
        Check.same("no RDD", 0, Words.rdd(-1, 5));
    }
}
