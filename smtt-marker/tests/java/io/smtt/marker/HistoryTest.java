package io.smtt.marker;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.parquet.example.data.Group;
import org.apache.spark.SparkConf;
import org.apache.spark.metrics.MetricsSystem;
import org.apache.spark.scheduler.LiveListenerBus;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerBlockManagerRemoved;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerUnpersistRDD;

/** The history beside other listeners, on Spark's own bus. */
final class HistoryTest {
    private static LiveListenerBus bus() {
        return new LiveListenerBus(new SparkConf(false));
    }

    private static void start(LiveListenerBus bus) {
        bus.start(null, MetricsSystem.createMetricsSystem("driver", new SparkConf(false)));
    }

    private static SparkListenerEvent event(int number) {
        return new SparkListenerUnpersistRDD(number);
    }

    /** Fails as a class of another version, as a broken listener, and as one that is interrupted. */
    private static final class Fails extends SparkListener {
        final AtomicInteger asked = new AtomicInteger();

        @Override
        public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
            asked.incrementAndGet();
            throw new IllegalStateException("planned");
        }

        @Override
        public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
            asked.incrementAndGet();
            throw new StackOverflowError("planned");
        }

        @Override
        public void onBlockManagerRemoved(SparkListenerBlockManagerRemoved event) {
            asked.incrementAndGet();
            throw new NoSuchMethodError("planned");
        }
    }

    @Test
    void nothingEscapesToTheBus() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            Fails fails = new Fails();
            List<Integer> seen = new ArrayList<>();
            LiveListenerBus bus = bus();
            bus.addToQueue(History.guarded(fails, parts, bus), "smtt-history");
            bus.addToQueue(new SparkListener() {
                @Override
                public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
                    seen.add(event.rddId());
                }
            }, "smtt-history");
            start(bus);
            bus.post(event(1));
            bus.post(new SparkListenerExecutorRemoved(1, "1", "planned"));
            bus.post(event(2));
            // From here on it is not asked again.
            bus.post(new SparkListenerBlockManagerRemoved(1, null));
            bus.post(event(3));
            bus.waitUntilEmpty(60_000);
            bus.stop();
            Check.same("events of a listener in the same queue", java.util.Arrays.asList(1, 2, 3), seen);
            Check.same("events of the one that fails", 4, fails.asked.get());
            parts.begin(HistoryFolder.APPLICATION, null);
            parts.start();
            parts.finish(System.nanoTime() + 60_000_000_000L);
            Check.same("counted", 5, HistoryFolder.said(folder.parts("meta").get(0), "lostEvents"));
        }
    }

    /** Spark waits for every queue, so another listener can use up that time. */
    @Test
    void aSlowListenerOfTheApplicationDoesNotCostTheLastPart() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            CountDownLatch end = new CountDownLatch(1);
            LiveListenerBus bus = bus();
            bus.addToSharedQueue(new SparkListener() {
                @Override
                public void onApplicationEnd(SparkListenerApplicationEnd event) {
                    HistoryPartsTest.await(end);
                }
            });
            bus.addToQueue(History.guarded(new SparkListener() {
                @Override
                public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
                    parts.event("{\"Event\":\"of RDD " + event.rddId() + "\"}");
                }
            }, parts, bus), "smtt-history");
            start(bus);
            try {
                parts.begin(HistoryFolder.APPLICATION, null);
                parts.start();
                bus.post(new SparkListenerApplicationEnd(1));
                bus.post(event(5));
                new History(bus, parts).stop();
                List<List<Group>> documents = folder.parts("meta");
                Check.that("there are parts", !documents.isEmpty());
                List<Group> last = documents.get(documents.size() - 1);
                Check.that(HistoryFolder.said(last), HistoryFolder.said(last).contains("\"last\":true"));
                List<String> events = new ArrayList<>();
                for (List<Group> part : documents) {
                    part.subList(1, part.size()).forEach(row -> events.add(row.getString("json", 0)));
                }
                Check.same("events", java.util.Arrays.asList("{\"Event\":\"of RDD 5\"}"), events);
            } finally {
                end.countDown();
                bus.stop();
            }
        }
    }

    /** Events that come one by one are taken together: a thread that waits for each costs more than its work. */
    @Test
    void eventsGather() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            AtomicReference<Thread> queue = new AtomicReference<>();
            AtomicInteger seen = new AtomicInteger();
            LiveListenerBus bus = bus();
            bus.addToQueue(History.guarded(new SparkListener() {
                @Override
                public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
                    queue.set(Thread.currentThread());
                    seen.incrementAndGet();
                }
            }, parts, bus), "smtt-history");
            start(bus);
            bus.post(event(0));
            bus.waitUntilEmpty(60_000);
            long before = waits(queue.get());
            long begin = System.nanoTime();
            for (int i = 1; i <= 1_000; i++) {
                bus.post(event(i));
                LockSupport.parkNanos(300_000);
            }
            bus.waitUntilEmpty(60_000);
            long pauses = (System.nanoTime() - begin) / 5_000_000;
            long waits = waits(queue.get()) - before;
            bus.stop();
            Check.same("events", 1_001, seen.get());
            Check.that(waits + " waits in " + pauses + " pauses", waits <= 3 * pauses + 20);
        }
    }

    /** How often the thread waited for anything, by the JVM's account. */
    private static long waits(Thread thread) {
        return ManagementFactory.getThreadMXBean().getThreadInfo(thread.getId()).getWaitedCount();
    }

    /** What a slow queue of the history itself still has is waited for. */
    @Test
    void theEndWaitsForEventsOnTheirWay() throws Exception {
        try (HistoryFolder folder = new HistoryFolder()) {
            HistoryParts parts = new HistoryParts(folder.open(() -> {}), () -> 0);
            LiveListenerBus bus = bus();
            bus.addToQueue(History.guarded(new SparkListener() {
                @Override
                public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
                    HistoryPartsTest.pause(10);
                    parts.event("{\"Event\":\"of RDD " + event.rddId() + "\"}");
                }
            }, parts, bus), "smtt-history");
            start(bus);
            parts.begin(HistoryFolder.APPLICATION, null);
            parts.start();
            for (int i = 0; i < 20; i++) {
                bus.post(event(i));
            }
            new History(bus, parts).stop();
            bus.stop();
            long events = 0;
            for (List<Group> part : folder.parts("meta")) {
                events += HistoryFolder.said(part, "events");
            }
            Check.same("events", 20, events);
        }
    }
}
