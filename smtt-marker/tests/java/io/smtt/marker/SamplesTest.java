package io.smtt.marker;

final class SamplesTest {
    private static final int PER_BLOCK = 32;
    private static final int MOST = 8192;

    public SamplesTest() {
        Facts.teller();
        Check.that("objects can be followed in this JVM", Addresses.handlesAreRead());
    }

    private static Object[] numbers(int count) {
        Object[] numbers = new Object[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = i;
        }
        return numbers;
    }

    /** What is left, taken in large blocks and given back. */
    private static int left() {
        int taken = 0;
        for (Object[] more = Samples.of(numbers(1000)); more.length > 0; more = Samples.of(numbers(1000))) {
            Check.that("at most 32 of one block: " + more.length, more.length <= PER_BLOCK);
            taken += more.length;
            Check.that("at most 8192 of all blocks: " + taken, taken <= MOST);
        }
        Samples.giveBack(taken);
        return taken;
    }

    @Test
    void aLargeBlockIsSampledEvenly() {
        Object[] chosen = Samples.of(numbers(3200));
        Samples.giveBack(chosen.length);
        Check.same("elements", PER_BLOCK, chosen.length);
        for (int i = 0; i < chosen.length; i++) {
            Check.same("element " + i, 100 * i + 50, ((Integer) chosen[i]).longValue());
        }
    }

    @Test
    void aSmallBlockIsFollowedWhole() {
        Object[] all = numbers(5);
        Object[] chosen = Samples.of(all);
        Samples.giveBack(chosen.length);
        Check.same("elements", java.util.Arrays.asList(all), java.util.Arrays.asList(chosen));
        Check.same("of an empty block", 0, Samples.of(new Object[0]).length);
    }

    @Test
    void emptyPlacesAreNotCounted() {
        Object[] holes = numbers(64);
        for (int i = 0; i < 64; i += 4) {
            holes[i] = null;
            holes[i + 1] = null;
        }
        Object[] chosen = Samples.of(holes);
        Check.same("elements", 16, chosen.length);
        for (Object element : chosen) {
            Check.that("an element is missing", element != null);
        }
        Samples.giveBack(chosen.length);
        Check.same("left", MOST, left());
    }

    @Test
    void allBlocksTogetherHaveABound() {
        Check.same("of all blocks", MOST, left());
        Check.same("when all was given back", MOST, left());
    }

    @Test
    void theNearerTheBoundTheFewer() {
        int taken = 0;
        int before = PER_BLOCK;
        for (int i = 0; i < 1000; i++) {
            int count = Samples.of(numbers(1000)).length;
            Check.that(count + " after " + before, count <= before);
            before = count;
            taken += count;
        }
        Samples.giveBack(taken);
        Check.that("a late block still gets some: " + before, before < PER_BLOCK / 2);
    }

    @Test
    void sizesAreThoseOfTheObjects() {
        long[] sizes = Samples.sizes(new Object[] {1, 2, new byte[1000], new byte[10], new byte[1000]});
        Check.same("two of one class", sizes[0], sizes[1]);
        Check.that("an Integer: " + sizes[0], sizes[0] == 16 || sizes[0] == 24);
        Check.that("1000 bytes and a header: " + sizes[2], sizes[2] > 1000 && sizes[2] < 1100);
        Check.that("arrays differ: " + sizes[3], sizes[3] < 100);
        Check.same("and are asked for one by one", sizes[2], sizes[4]);
    }
}
