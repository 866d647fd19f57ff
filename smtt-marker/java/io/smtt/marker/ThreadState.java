package io.smtt.marker;

import java.util.Iterator;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.spark.TaskContext;

/** The marker's state of one thread. Used by that thread only, except by {@link #sweep} and {@link #tellRunning}. */
public final class ThreadState {
    private static final ThreadLocal<ThreadState> CURRENT = ThreadLocal.withInitial(ThreadState::new);
    private static final Queue<ThreadState> ALL = new ConcurrentLinkedQueue<>();

    /** A constant, so that a change of context costs nothing more where nothing is published. */
    private static final boolean SHOWS = Options.otel();

    final Thread thread = Thread.currentThread();
    final FactWriter facts;
    /** Address of the hot word: the slot's, or of private memory while the thread has no slot. */
    long slot;
    /** The coroutine of user code on this thread, or null. */
    Pipeline pipeline;
    /** A scope that pulls the pipeline is running: user code runs inside the pulls only. */
    boolean outside;
    /** The task attempt that this thread works for, or null. */
    Task task;
    /** The executor's frame around a task, or null on threads that are no task threads. */
    TaskFrame runner;
    /** What the task of this thread uses. */
    final Accounts accounts = new Accounts();
    /** What this thread does to help a task, or null. */
    Helpers.Run helping;
    /** The thread's context for profilers, or null. */
    ThreadContext context;
    /** The next call of acquireExecutionMemory or releaseExecutionMemory belongs to a page. */
    boolean pageCall;

    private final long memory;
    private boolean registered;
    private boolean refused;
    private long told;

    private ThreadState() {
        memory = Memory.allocate(Contract.PAYLOAD_MAX + Contract.SLOT_SIZE);
        facts = new FactWriter(this, memory);
        slot = memory + Contract.PAYLOAD_MAX;
        ALL.add(this);
    }

    static ThreadState current() {
        return CURRENT.get();
    }

    /** The current thread's state; a thread that already runs a task, unknown so far, gets that task here. */
    static ThreadState currentInTask() {
        ThreadState state = CURRENT.get();
        if (state.task == null && state.runner == null) {
            TaskContext context = TaskContext.get();
            if (context != null) {
                Tasks.set(context);
            }
        }
        return state;
    }

    boolean registered() {
        return registered;
    }

    long hot() {
        return Memory.getLong(slot);
    }

    /** The ordered store that changes what this thread is doing. */
    void hot(long word) {
        Memory.putLongOrdered(slot, word);
        Memory.loadFence();
        show(word);
    }

    /** Shows the hot word to profilers, where that is on. */
    void show(long word) {
        if (SHOWS) {
            ThreadContext shown = context;
            if (shown != null) {
                shown.show(word);
            }
        }
    }

    /** Allocates a slot for the thread, once the executor is known and while a slot is free. */
    void register() {
        if (registered || refused || !ExecutorIdentity.describe()) {
            return;
        }
        int tid = Native.threadId();
        long taken = SlotFile.take(tid);
        if (taken == 0) {
            refused = true;
            return;
        }
        slot = taken;
        registered = true;
        facts.begin(FactForm.THREAD_REGISTERED)
                .word(Contract.THREAD_REGISTERED_SLOT_ADDRESS, slot)
                .word(Contract.THREAD_REGISTERED_TID, tid)
                .word(Contract.THREAD_REGISTERED_GENERATION, Memory.getInt(slot + Contract.SLOT_GENERATION))
                .text(Contract.THREAD_REGISTERED_THREAD_NAME, thread.getName()).tell();
        try {
            context = ThreadContext.of(this);
        } catch (Throwable e) {
            Warnings.once("a thread's context is not published", e);
        }
    }

    /** Starts or ends work for a task; the hot word is 0 while the cold words change. */
    void work(Task next, long word) {
        hot(0);
        task = next;
        if (context != null) {
            context.clear();
        }
        SlotFile.setTask(slot, next);
        hot(word);
    }

    /** User code has ended on this thread. */
    void leavePipeline() {
        pipeline = null;
        outside = false;
    }

    void countFact() {
        told++;
        if (registered) {
            Memory.putLongOrdered(slot + Contract.SLOT_FACTS_EMITTED, Memory.getLong(slot + Contract.SLOT_FACTS_EMITTED) + 1);
        } else {
            SlotFile.countFactWithoutSlot();
        }
    }

    /** Takes back the last count: the fact has no entry point. */
    void uncountFact() {
        told--;
        if (registered) {
            Memory.putLongOrdered(slot + Contract.SLOT_FACTS_EMITTED, Memory.getLong(slot + Contract.SLOT_FACTS_EMITTED) - 1);
        } else {
            SlotFile.uncountFactWithoutSlot();
        }
    }

    /** Facts that this thread has reported. */
    long factsTold() {
        return told;
    }

    /** Reports the heap of running tasks. */
    static void tellRunning() {
        ThreadState teller = current();
        for (ThreadState state : ALL) {
            state.accounts.tellRunning(teller, state.thread);
        }
    }

    /** Releases the slots of dead threads. Helper threads of a task end without a hook. */
    static void sweep() {
        ThreadState teller = current();
        for (Iterator<ThreadState> all = ALL.iterator(); all.hasNext(); ) {
            ThreadState state = all.next();
            if (state.thread.isAlive()) {
                continue;
            }
            all.remove();
            if (state.registered) {
                teller.facts.begin(FactForm.THREAD_GONE)
                        .word(Contract.THREAD_GONE_SLOT_ADDRESS, state.slot)
                        .word(Contract.THREAD_GONE_TID, Memory.getInt(state.slot + Contract.SLOT_TID))
                        .word(Contract.THREAD_GONE_GENERATION, Memory.getInt(state.slot + Contract.SLOT_GENERATION)).tell();
                SlotFile.give(state.slot);
            }
            Memory.free(state.memory);
            if (state.context != null) {
                state.context.free();
            }
        }
    }
}
