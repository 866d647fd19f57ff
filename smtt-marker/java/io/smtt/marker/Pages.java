package io.smtt.marker;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.unsafe.memory.MemoryBlock;

/** Hooks around execution memory: pages with addresses, and grants of bytes without a page. */
public final class Pages {
    /** By manager, held weakly: some managers outlive every task (broadcast hash tables) and are never cleaned up. */
    private static final Map<Object, TaskMemory> MANAGERS = new WeakHashMap<>();

    private Pages() {}

    /** Return of {@code allocatePage}. */
    public static void allocated(Object page, Object manager, Object consumer) {
        try {
            if (page != null) {
                memory(manager).add((MemoryBlock) page, consumer, ThreadState.current());
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code freePage}. */
    public static void freed(Object manager, Object page) {
        try {
            if (page != null) {
                memory(manager).free((MemoryBlock) page, ThreadState.current());
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code cleanUpAllAllocatedMemory}: pages left over are freed without a call of freePage. */
    public static void cleaned(Object manager) {
        try {
            memory(manager).clean(ThreadState.current());
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** The call of acquireExecutionMemory in allocatePage: these bytes are reported with the page. */
    public static long acquireForPage(TaskMemoryManager manager, long bytes, MemoryConsumer consumer) {
        mark();
        return manager.acquireExecutionMemory(bytes, consumer);
    }

    /** The call of releaseExecutionMemory in freePage. */
    public static void releaseForPage(TaskMemoryManager manager, long bytes, MemoryConsumer consumer) {
        mark();
        manager.releaseExecutionMemory(bytes, consumer);
    }

    private static void mark() {
        try {
            ThreadState.current().pageCall = true;
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code acquireExecutionMemory}. Spilling inside it may free and release for others. */
    public static Object beginAcquire(int hook, Object manager, Object consumer) {
        try {
            ThreadState state = ThreadState.currentInTask();
            if (state.pageCall) {
                state.pageCall = false;
                return null;
            }
            return new Object[] {manager, consumer};
        } catch (Throwable e) {
            return Scopes.failed(e);
        }
    }

    /** Return of {@code acquireExecutionMemory}, with the granted bytes. */
    public static void endAcquire(long granted, Object open) {
        if (open == null || granted <= 0) {
            return;
        }
        try {
            Object[] call = (Object[]) open;
            memory(call[0]).grant(call[1], granted, ThreadState.current());
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Entry of {@code releaseExecutionMemory}. */
    public static void released(Object manager, long bytes, Object consumer) {
        try {
            ThreadState state = ThreadState.current();
            if (state.pageCall) {
                state.pageCall = false;
                return;
            }
            if (bytes > 0) {
                memory(manager).release(consumer, bytes, state);
            }
        } catch (Throwable e) {
            Scopes.failed(e);
        }
    }

    /** Reads the memory that a task held before the agent was attached. */
    static void adopt(Task task) {
        try {
            TaskMemoryManager manager = (TaskMemoryManager) task.memoryManager;
            TaskMemory memory = memory(manager);
            memory.incomplete();
            Field field = TaskMemoryManager.class.getDeclaredField("pageTable");
            field.setAccessible(true);
            ThreadState state = ThreadState.current();
            long paged = 0;
            for (MemoryBlock page : (MemoryBlock[]) field.get(manager)) {
                if (page != null) {
                    memory.add(page, null, state);
                    paged += page.size();
                }
            }
            long rest = manager.getMemoryConsumptionForThisTask() - paged;
            if (rest > 0) {
                memory.grant(null, rest, state);
            }
        } catch (Throwable e) {
            Warnings.once("execution memory of a running task could not be read", e);
        }
    }

    static TaskMemory memory(Object manager) {
        synchronized (MANAGERS) {
            TaskMemory memory = MANAGERS.get(manager);
            if (memory == null) {
                // A manager that belongs to no running task (a broadcast's hash table has one of its own).
                Task owner = null;
                for (Task task : Task.ALIVE.values()) {
                    if (task.memoryManager == manager) {
                        owner = task;
                    }
                }
                memory = new TaskMemory(manager, owner);
                MANAGERS.put(manager, memory);
                if (owner != null) {
                    owner.memory = memory;
                }
            }
            return memory;
        }
    }

    private static List<TaskMemory> all() {
        synchronized (MANAGERS) {
            return new ArrayList<>(MANAGERS.values());
        }
    }

    /** Resident bytes of the pages outside of the heap. */
    static long offHeapResident() {
        long sum = 0;
        for (TaskMemory memory : all()) {
            sum += memory.offHeapResident();
        }
        return sum;
    }

    /** Reports every page and grant, for a resync. */
    static void tellAgain(Pace pace) throws InterruptedException {
        for (TaskMemory memory : all()) {
            memory.tellAgain(ThreadState.current());
            pace.step();
        }
    }

    /** After a collection: reports pages whose address changed, and frees pages whose manager is gone. */
    static void tellMoved(Pace pace) throws InterruptedException {
        for (TaskMemory memory : all()) {
            memory.tellMoved(ThreadState.current());
            pace.step();
        }
        TaskMemory.reap(ThreadState.current());
    }
}
