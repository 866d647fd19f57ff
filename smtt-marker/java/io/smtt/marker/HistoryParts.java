package io.smtt.marker;

import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * What waits for the next part of the history, bounded, and the thread that writes parts: when 1,000 tasks wait, when a
 * stage or job ended and the last part is 10 s old, when anything waits for a minute, and at the application's end.
 *
 * <p>A part has up to three files, {@code meta} last: a part without it does not exist. A part that cannot be written
 * waits and is tried again; what comes meanwhile waits within the bounds, and beyond them is counted.
 */
final class HistoryParts implements Runnable {
    /** Tasks for which a part is written at once. */
    private static final int PART_TASKS = 1_000;
    /** Bytes of an event without its text. */
    private static final long EVENT_BYTES = 100;
    /** Bytes of tasks and events for which a part is written at once; a character of a text counts as two. */
    private static final long PART_BYTES = 4 << 20;
    private static final long PART_NS = 10_000_000_000L;
    private static final long OLDEST_NS = 60_000_000_000L;
    private static final long AGAIN_NS = 10_000_000_000L;
    /** Time between attempts when the application ends. */
    private static final long LAST_AGAIN_NS = 500_000_000L;
    /** Tasks that wait at most, with those of a part that is being written. */
    private static final int WAITING_TASKS = 20_000;
    /** Bytes of tasks and events that wait at most, with those of a part that is being written; a character counts as two. */
    private static final long WAITING_BYTES = 48 << 20;
    /** After so many parts the time between two doubles: a reader takes 100,000. */
    private static final long SLOWER_PARTS = 10_000;

    private final HistoryStore store;
    private final LongSupplier missed;
    private Runnable beforeCut = () -> {};

    // All below: under the lock of this object.
    List<HistoryRow> tasks = new ArrayList<>();
    private List<Event> events = new ArrayList<>();
    private long bytes;
    private int writingTasks;
    private long writingBytes;
    long number;
    private long lostTasks;
    private long lostEvents;
    private String folder;
    private String application;
    private boolean hasEnded;
    private boolean isLast;
    private boolean isDone;
    private boolean isAbandoned;
    private long partAt = System.nanoTime() - PART_NS;
    private Cut failed;
    private long againAt;

    // Only the thread's.
    private long part;
    private boolean isComplaining;

    /** An event's line, with its number. */
    private static final class Event implements HistoryStore.Row {
        final String kind;
        final String id;
        final String json;

        Event(String kind, String id, String json) {
            this.kind = kind;
            this.id = id;
            this.json = json;
        }

        @Override
        public long number(int column) {
            return 0;
        }

        @Override
        public String text(int column) {
            return column == 0 ? kind : column == 1 ? id : json;
        }
    }

    /** What a part has. */
    private static final class Cut {
        List<HistoryRow> tasks;
        List<Event> events;
        long lostTasks;
        long lostEvents;
        boolean isLast;
    }

    HistoryParts(HistoryStore store, LongSupplier missed) {
        this.store = store;
        this.missed = missed;
    }

    /** Called with this object's lock before each cut. */
    void beforeCut(Runnable action) {
        beforeCut = action;
    }

    void start() {
        Thread thread = new Thread(this, "smtt-history");
        thread.setDaemon(true);
        thread.start();
    }

    /** The next event's number. */
    synchronized long number() {
        return ++number;
    }

    /**
     * A task that ended. Under one lock its start is forgotten and its end is there, so that a part has either.
     *
     * @param started the number of its start, negative where an earlier part has it, or null where it is unknown
     * @return false where the start is unknown; then nothing happened
     */
    synchronized boolean task(HistoryRow row, Supplier<Long> started) {
        Long start = started.get();
        if (start == null) {
            return false;
        }
        row.events(start, ++number);
        lostEvents += row.unreadable;
        if (isDone) {
            return true;
        }
        long size = row.bytes();
        if (tasks.size() + writingTasks >= WAITING_TASKS || bytes + writingBytes + size > WAITING_BYTES) {
            lostTasks++;
            return true;
        }
        bytes += size;
        tasks.add(row);
        if (tasks.size() >= PART_TASKS || bytes >= PART_BYTES) {
            notifyAll();
        }
        return true;
    }

    synchronized void event(String json) {
        add(++number, json);
    }

    /** An earlier event, which became one of its own. */
    synchronized void started(long at, String json) {
        if (json != null) {
            add(at, json);
        }
    }

    private void add(long at, String json) {
        if (isDone) {
            return;
        }
        long size = EVENT_BYTES + 2L * json.length();
        if (bytes + writingBytes + size > WAITING_BYTES) {
            lostEvents++;
            return;
        }
        bytes += size;
        events.add(new Event("event", Long.toString(at), json));
        if (bytes >= PART_BYTES) {
            notifyAll();
        }
    }

    synchronized void lost() {
        lostTasks++;
    }

    synchronized void lostEvent() {
        lostEvents++;
    }

    /** A stage, a job or the application ended. */
    synchronized void ended() {
        hasEnded = true;
        notifyAll();
    }

    /** The application's folder is known. */
    synchronized void begin(String id, String attempt) {
        String name = attempt == null ? id : id + "_" + attempt;
        if (id == null || !isSafe(id) || attempt != null && !isSafe(attempt)) {
            Warnings.once("no history is written: the application's id " + name + " can be no folder", null);
            isAbandoned = true;
            notifyAll();
            return;
        }
        application = id;
        folder = name;
        hasEnded = true;
        notifyAll();
    }

    /** As {@code smtt-history} reads names. */
    static boolean isSafe(String id) {
        return id.length() <= 160 && id.matches("[A-Za-z0-9_-][A-Za-z0-9._-]*");
    }

    /** Writes what is left; waits until the thread has done so, or gives up at a time of {@link System#nanoTime}. */
    synchronized void finish(long until) throws InterruptedException {
        isLast = true;
        againAt = System.nanoTime();
        isAbandoned |= folder == null;
        notifyAll();
        while (!isDone) {
            long left = until - System.nanoTime();
            if (left <= 0) {
                isAbandoned = true;
                notifyAll();
                int waiting = tasks.size() + writingTasks;
                Warnings.once("the history in " + store + " lacks its last part: " + waiting + " tasks", null);
                return;
            }
            wait(left / 1_000_000 + 1);
        }
    }

    @Override
    public void run() {
        try {
            while (true) {
                Cut cut;
                synchronized (this) {
                    for (long ns = pause(System.nanoTime()); ns > 0; ns = pause(System.nanoTime())) {
                        wait(ns / 1_000_000 + 1);
                    }
                    if (isAbandoned) {
                        break;
                    }
                    cut = failed == null ? cut() : failed;
                }
                if (write(cut) && cut.isLast) {
                    break;
                }
            }
        } catch (Throwable e) {
            Warnings.once("the history ends here", e);
        }
        store.close();
        synchronized (this) {
            isDone = true;
            tasks = new ArrayList<>();
            events = new ArrayList<>();
            failed = null;
            notifyAll();
        }
    }

    /** Nanoseconds until the next part; 0 or less for now. */
    private long pause(long now) {
        if (isAbandoned) {
            return 0;
        }
        if (folder == null) {
            return OLDEST_NS;
        }
        if (failed != null) {
            return againAt - now;
        }
        if (isLast || tasks.size() >= PART_TASKS || bytes >= PART_BYTES) {
            return 0;
        }
        long times = 1L << Math.min(part / SLOWER_PARTS, 9);
        return partAt + (hasEnded ? PART_NS : OLDEST_NS) * times - now;
    }

    private Cut cut() {
        beforeCut.run();
        Cut cut = new Cut();
        cut.tasks = tasks;
        cut.events = events;
        cut.lostTasks = lostTasks;
        cut.lostEvents = lostEvents;
        cut.isLast = isLast;
        writingTasks = tasks.size();
        writingBytes = bytes;
        tasks = new ArrayList<>();
        events = new ArrayList<>();
        bytes = 0;
        hasEnded = false;
        partAt = System.nanoTime();
        return cut;
    }

    /** Writes a part; whether it was written. */
    private boolean write(Cut cut) {
        if (cut.tasks.isEmpty() && cut.events.isEmpty() && !cut.isLast) {
            // Nothing is being written: both are 0.
            return true;
        }
        try {
            store.open(folder, application);
            List<HistoryStore.Row> rows = new ArrayList<>();
            List<HistoryStore.Row> sql = new ArrayList<>();
            for (HistoryRow task : cut.tasks) {
                rows.add(task);
                task.sql(sql);
            }
            if (!rows.isEmpty()) {
                store.write(HistoryTable.TASKS, part + 1, rows);
            }
            if (!sql.isEmpty()) {
                store.write(HistoryTable.TASK_SQL, part + 1, sql);
            }
            List<HistoryStore.Row> documents = new ArrayList<>();
            documents.add(new Event("part", Long.toString(part + 1), "{\"tasks\":" + rows.size() + ",\"taskSql\":"
                    + sql.size() + ",\"events\":" + cut.events.size() + ",\"lostTasks\":" + cut.lostTasks
                    + ",\"lostEvents\":" + (cut.lostEvents + missed.getAsLong()) + ",\"last\":" + cut.isLast + "}"));
            documents.addAll(cut.events);
            store.write(HistoryTable.META, part + 1, documents);
            part++;
            if (isComplaining) {
                isComplaining = false;
                Warnings.state("the history is written again to " + store);
            }
            synchronized (this) {
                failed = null;
                writingTasks = 0;
                writingBytes = 0;
            }
            return true;
        } catch (LinkageError e) {
            throw e;
        } catch (Throwable e) {
            if (!isComplaining) {
                isComplaining = true;
                Warnings.once("the history cannot be written to " + store + ", and is tried again", e);
            }
            synchronized (this) {
                failed = cut;
                againAt = System.nanoTime() + (isLast ? LAST_AGAIN_NS : AGAIN_NS);
            }
            return false;
        }
    }
}
