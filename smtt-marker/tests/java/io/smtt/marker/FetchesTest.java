package io.smtt.marker;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.network.buffer.ManagedBuffer;
import org.apache.spark.network.buffer.NioManagedBuffer;
import org.apache.spark.network.shuffle.BlockFetchingListener;

final class FetchesTest {
    private final ThreadState state = Facts.teller();

    /** Spark's own listener: what it was called with. */
    private static final class Seen implements BlockFetchingListener {
        final List<String> calls = new ArrayList<>();

        @Override
        public void onBlockFetchSuccess(String block, ManagedBuffer data) {
            calls.add(block + " " + data.size());
        }

        @Override
        public void onBlockFetchFailure(String block, Throwable error) {
            calls.add(block + " " + error.getMessage());
        }
    }

    private static ManagedBuffer bytes(int size) {
        return new NioManagedBuffer(ByteBuffer.allocate(size));
    }

    private static void same(Facts.Fact fact, long requests, long blocks, long arrived, long failed, long bytes, String address) {
        Check.same("fact", "shuffleFetched", fact.entry);
        Check.same("requests", requests, fact.word("requests"));
        Check.same("blocks", blocks, fact.word("blocks"));
        Check.same("arrived blocks", arrived, fact.word("arrived_blocks"));
        Check.same("failed blocks", failed, fact.word("failed_blocks"));
        Check.same("bytes", bytes, fact.word("arrived_bytes"));
        Check.same("address", address, fact.text("address"));
    }

    @Test
    void aRequestIsReportedWithItsLastBlockAndBeforeSparkLearnsOfIt() {
        Fetches fetches = new Fetches(91);
        Seen seen = new Seen();
        BlockFetchingListener listener = fetches.begin("node-2:7337", "2", 2, seen);
        Check.same("facts of the first block", 0, Facts.during(() -> listener.onBlockFetchSuccess("a", bytes(10))).size());
        Facts.Fact told = Facts.one(() -> listener.onBlockFetchSuccess("b", bytes(5)));
        same(told, 1, 2, 2, 0, 15, "node-2:7337");
        Check.same("task", 91, told.word("task_attempt_id"));
        Check.same("executor", "2", told.text("executor_id"));
        long now = System.nanoTime();
        long end = told.word("start_monotonic_ns") + told.word("duration_ns");
        Check.that("it has just ended", end <= now && now - end < 10_000_000_000L);
        Check.same("Spark's listener", "[a 10, b 5]", seen.calls.toString());
        Check.same("facts of the end", 0, Facts.during(() -> fetches.end(state)).size());
    }

    @Test
    void aFailedRequestSaysSo() {
        Fetches fetches = new Fetches(92);
        Seen seen = new Seen();
        BlockFetchingListener listener = fetches.begin("node-2:7337", "2", 2, seen);
        listener.onBlockFetchSuccess("a", bytes(10));
        Facts.Fact told = Facts.one(() -> listener.onBlockFetchFailure("b", new IllegalStateException("reset")));
        same(told, 1, 2, 1, 1, 10, "node-2:7337");
        Check.same("Spark's listener", "[a 10, b reset]", seen.calls.toString());
    }

    @Test
    void theEndOfTheTaskEndsItsRequests() {
        Fetches fetches = new Fetches(93);
        Seen seen = new Seen();
        BlockFetchingListener listener = fetches.begin("node-2:7337", "2", 3, seen);
        listener.onBlockFetchSuccess("a", bytes(10));
        same(Facts.one(() -> fetches.end(state)), 1, 3, 1, 0, 10, "node-2:7337");
        List<Facts.Fact> later = Facts.during(() -> {
            listener.onBlockFetchSuccess("b", bytes(1));
            listener.onBlockFetchSuccess("c", bytes(1));
            fetches.end(state);
        });
        Check.same("later facts", 0, later.size());
        Check.same("Spark's listener", "[a 10, b 1, c 1]", seen.calls.toString());
        Check.that("a request after the end is not watched", fetches.begin("x:1", "1", 1, seen) == seen);
    }

    @Test
    void requestsBeyondTheBoundAreOneSum() {
        Fetches fetches = new Fetches(94);
        Seen seen = new Seen();
        List<Facts.Fact> facts = Facts.during(() -> {
            for (int i = 0; i < Fetches.TOLD_MAX + 7; i++) {
                fetches.begin("node-2:7337", "2", 1, seen).onBlockFetchSuccess("a", bytes(3));
            }
        });
        Check.same("facts", Fetches.TOLD_MAX, facts.size());
        same(Facts.one(() -> fetches.end(state)), 7, 7, 7, 0, 21, "");
        Check.same("Spark's listener", Fetches.TOLD_MAX + 7, seen.calls.size());
    }

    @Test
    void anErrorOfTheMarkerDoesNotReachSpark() {
        Fetches fetches = new Fetches(95);
        Seen seen = new Seen();
        BlockFetchingListener listener = fetches.begin("node-2:7337", "2", 1, seen);
        ManagedBuffer broken = new NioManagedBuffer(ByteBuffer.allocate(4)) {
            private boolean first = true;

            @Override
            public long size() {
                if (first) {
                    first = false;
                    throw new IllegalStateException("no size");
                }
                return super.size();
            }
        };
        PrintStream errors = System.err;
        ByteArrayOutputStream warned = new ByteArrayOutputStream();
        System.setErr(new PrintStream(warned, true));
        try {
            listener.onBlockFetchSuccess("a", broken);
        } finally {
            System.setErr(errors);
        }
        Check.that("the warning: " + warned, warned.toString().contains("no size"));
        Check.same("Spark's listener", "[a 4]", seen.calls.toString());
        fetches.end(state);
    }
}
