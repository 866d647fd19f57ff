package io.smtt.marker;

import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Reads a task's identity from its thread's name, where there is no better source. */
final class TaskNames {
    /** For example {@code Executor task launch worker for task 3.1 in stage 7.0 (TID 42)}. */
    private static final Pattern NAME = Pattern.compile("task (\\d+)\\.(\\d+) in stage (\\d+)\\.(\\d+) \\(TID (\\d+)\\)");

    private TaskNames() {}

    /** The task with that attempt id; its stage is unknown (-1) where the name lacks it. */
    static Task parse(Thread thread, long attemptId) {
        Task named = parse(thread);
        return named != null && named.attemptId == attemptId ? named : new Task(attemptId, -1, 0, 0, 0, -1, thread);
    }

    /** The task that a thread runs, or null where its name is not a task thread's. */
    static Task parse(Thread thread) {
        Matcher name = NAME.matcher(thread.getName());
        if (!name.find()) {
            return null;
        }
        return new Task(Long.parseLong(name.group(5)), Integer.parseInt(name.group(3)), Integer.parseInt(name.group(4)),
                Integer.parseInt(name.group(1)), Integer.parseInt(name.group(2)), -1, thread);
    }
}
