package io.smtt.marker;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

final class ThreadContextTest {
    private static final long COMPUTE = Words.COMPUTE_TAG;

    private final ThreadState state = Facts.teller();
    /** The variable, which a reader would find. */
    private final long place = Memory.allocate(8);
    private final ThreadContext context = new ThreadContext(state, place);

    /** The attributes of the record that is shown, or null. */
    private Map<String, String> shown() {
        long record = Memory.getLong(place);
        if (record == 0) {
            return null;
        }
        Check.same("valid", 1, Memory.getByte(record + ThreadContext.VALID));
        for (int i = 0; i < ThreadContext.VALID; i++) {
            Check.same("trace " + i, 0, Memory.getByte(record + i));
        }
        int size = unsigned(record + ThreadContext.SIZE) | unsigned(record + ThreadContext.SIZE + 1) << 8;
        Map<String, String> found = new TreeMap<>();
        long at = record + ThreadContext.ATTRIBUTES;
        long end = at + size;
        while (at < end) {
            byte[] text = new byte[unsigned(at + 1)];
            for (int i = 0; i < text.length; i++) {
                text[i] = Memory.getByte(at + 2 + i);
            }
            found.put(ThreadContext.KEYS[unsigned(at)], new String(text, StandardCharsets.UTF_8));
            at += 2 + text.length;
        }
        Check.same("end", end, at);
        return found;
    }

    private static int unsigned(long address) {
        return Memory.getByte(address) & 0xff;
    }

    private void work(Task task) {
        context.clear();
        state.task = task;
    }

    private Task task(long attempt) {
        return new Task(attempt, 7, 1, 3, 2, 5, state.thread);
    }

    @Test
    void aTaskIsShown() {
        work(task(41));
        context.show(COMPUTE | Words.rdd(12, 3));
        Map<String, String> found = shown();
        Check.same("stage", "7", found.get("spark.stage.id"));
        Check.same("stage's attempt", "1", found.get("spark.stage.attempt"));
        Check.same("attempt", "41", found.get("spark.task.attempt_id"));
        Check.same("partition", "3", found.get("spark.task.partition"));
        Check.same("RDD", "12", found.get("spark.rdd.id"));
        Check.same("RDD's partition", "3", found.get("spark.rdd.partition"));
        Check.same("activity", "compute", found.get("spark.activity"));
        Check.same("attributes", ThreadContext.KEYS.length, found.size());
        context.show(0);
        Check.same("idle", null, shown());
    }

    @Test
    void nothingOfTheTaskBeforeIsLeft() {
        work(task(1));
        long word = COMPUTE | Words.rdd(12, 3);
        context.show(word);
        work(task(2));
        Check.same("no context meanwhile", null, shown());
        context.show(word);
        Check.same("attempt", "2", shown().get("spark.task.attempt_id"));
        work(null);
        context.show(word);
        Check.same("no task", null, shown().get("spark.task.attempt_id"));
        // Without a task nothing is kept: the next one may be of another application.
        state.task = task(3);
        context.show(word);
        Check.same("made anew", "3", shown().get("spark.task.attempt_id"));
    }

    /** Words of which any two have the same first place, as a cached RDD and the shuffle of its child may have: each keeps its own record. */
    @Test
    void wordsThatAlternateKeepTheirRecords() {
        work(task(1));
        long[] words = new long[4];
        int found = 0;
        for (int rdd = 1; found < words.length; rdd++) {
            long word = COMPUTE | Words.rdd(rdd, 0);
            if (ThreadContext.index(word) == 5) {
                words[found++] = word;
            }
        }
        long[] records = new long[words.length];
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < words.length; i++) {
                context.show(words[i]);
                long record = Memory.getLong(place);
                if (round == 0) {
                    records[i] = record;
                }
                Check.same("record " + i, records[i], record);
                Check.same("RDD " + i, Integer.toString(Words.rddId(words[i])), shown().get("spark.rdd.id"));
                context.show(0);
                Check.same("idle", null, shown());
            }
        }
    }

    /** Far more words than records: each is right when it is shown, also where it takes the record that is shown. */
    @Test
    void wordsThatShareARecordAreRight() {
        work(task(1));
        for (int round = 0; round < 3; round++) {
            for (int rdd = 0; rdd < 20 * ThreadContext.RECORDS; rdd++) {
                long inner = COMPUTE | Words.rdd(rdd, rdd / 2);
                context.show(inner);
                Map<String, String> found = shown();
                Check.same("RDD", Integer.toString(rdd), found.get("spark.rdd.id"));
                Check.same("partition", Integer.toString(rdd / 2), found.get("spark.rdd.partition"));
                if (rdd % 7 == 0) {
                    context.show(0);
                    Check.same("idle", null, shown());
                }
            }
        }
    }

    @Test
    void anUnknownRddHasNoName() {
        work(task(1));
        for (long bits : new long[] {0, Words.rdd(-1, 3), Words.rdd(1 << 25, 3)}) {
            context.show(COMPUTE | bits);
            Check.same("RDD", null, shown().get("spark.rdd.id"));
            Check.same("partition", null, shown().get("spark.rdd.partition"));
            Check.same("activity", "compute", shown().get("spark.activity"));
        }
    }

    @Test
    void everyActivityHasAName() {
        work(task(1));
        for (int code = 1; code <= Contract.ACTIVITY_HASH_GROW; code++) {
            context.show(Words.tag(code, Contract.ACCESS_NONE, Contract.REGION_NONE));
            Check.same("activity " + code, Contract.ACTIVITY_NAMES[code], shown().get("spark.activity"));
        }
        // Of a newer marker: no name, and no exception.
        context.show(Words.tag(200, Contract.ACCESS_NONE, Contract.REGION_NONE));
        Check.same("unknown activity", null, shown().get("spark.activity"));
    }

    @Test
    void aLongTextIsCutBetweenCharacters() {
        Check.same("short", 3, ThreadContext.fit("abc".getBytes(StandardCharsets.UTF_8)));
        StringBuilder text = new StringBuilder("x");
        for (int i = 0; i < ThreadContext.TEXT_MAX; i++) {
            text.append('\u00e9');
        }
        Check.same("cut", ThreadContext.TEXT_MAX - 1, ThreadContext.fit(text.toString().getBytes(StandardCharsets.UTF_8)));
    }

    @Test
    void theIndexHasAPlace() {
        for (long word : new long[] {0, 1, -1, Long.MIN_VALUE, Long.MAX_VALUE}) {
            int index = ThreadContext.index(word);
            Check.same("index of " + word, true, index >= 0 && index < ThreadContext.RECORDS);
        }
    }
}
