package io.smtt.marker;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.TaskMetrics;

/** A running task attempt. Its start and its end are each reported once. */
final class Task {
    static final ConcurrentHashMap<Long, Task> ALIVE = new ConcurrentHashMap<>();

    private static final AtomicLong STARTED = new AtomicLong();

    /** Most reported reads per task: further reads of cached blocks only set the hot word. */
    private static final int READS_MAX = 1000;

    final long attemptId;
    final int stageId;
    final int stageAttempt;
    final int partition;
    final int attemptNumber;
    final int jobId;
    /** The thread that runs the task, not a helper thread. */
    final Thread thread;
    /** The pipeline of the task's own thread. */
    final Pipeline pipeline = new Pipeline(0);
    /** Spark's manager of this task's execution memory, or null where only the thread's name is known. */
    volatile Object memoryManager;
    volatile TaskMemory memory;
    /** Spark's metrics of this task, or null where only the thread's name is known. */
    volatile TaskMetrics metrics;
    /** Whether the task was running before the agent was attached. */
    volatile boolean partly;
    volatile String reason = "";
    volatile long outcome = -1;

    /** Requests for shuffle blocks of other executors. */
    final Fetches fetches;

    private final Set<Long> readsTold = new HashSet<>();
    private final List<Python.Service> pythonWorkers = new ArrayList<>(1);
    private boolean ended;
    private boolean countedInStage;

    Task(long attemptId, int stageId, int stageAttempt, int partition, int attemptNumber, int jobId, Thread thread) {
        this.attemptId = attemptId;
        this.stageId = stageId;
        this.stageAttempt = stageAttempt;
        this.partition = partition;
        this.attemptNumber = attemptNumber;
        this.jobId = jobId;
        this.thread = thread;
        fetches = new Fetches(attemptId);
    }

    Task(TaskContext context, int jobId) {
        this(context.taskAttemptId(), context.stageId(), context.stageAttemptNumber(), context.partitionId(), context.attemptNumber(), jobId,
                Thread.currentThread());
        memoryManager = context.taskMemoryManager();
        metrics = context.taskMetrics();
    }

    /** Number of reported task starts in this JVM. */
    static long started() {
        return STARTED.get();
    }

    synchronized void tellStart(ThreadState teller) {
        if (ended) {
            return;
        }
        STARTED.incrementAndGet();
        // Before that the peaks are not reported, so they would never be removed.
        if (!countedInStage && ExecutorIdentity.known()) {
            countedInStage = true;
            MemoryPeaks.began(stageId, stageAttempt);
        }
        teller.facts.begin(FactForm.TASK_STARTED)
                .word(Contract.TASK_STARTED_TASK_ATTEMPT_ID, attemptId)
                .word(Contract.TASK_STARTED_STAGE_ID, stageId)
                .word(Contract.TASK_STARTED_STAGE_ATTEMPT, stageAttempt)
                .word(Contract.TASK_STARTED_PARTITION, partition)
                .word(Contract.TASK_STARTED_ATTEMPT_NUMBER, attemptNumber)
                .word(Contract.TASK_STARTED_JOB_ID, jobId).tell();
    }

    /**
     * Reports the end.
     *
     * @param whole whether Spark has read its clocks: its task runner has ended, not only the task's function
     */
    synchronized void tellEnd(ThreadState teller, boolean whole) {
        if (ended) {
            return;
        }
        releasePython(teller);
        ended = true;
        if (countedInStage) {
            MemoryPeaks.ended(stageId, stageAttempt);
        }
        TaskMemory held = memory;
        if (held != null) {
            held.tellUse(teller);
        } else if (partly) {
            Consumers.tellUnknown(teller, attemptId);
        }
        fetches.end(teller);
        tellMetrics(teller, whole);
        if (teller.thread == thread) {
            teller.accounts.end(teller, attemptId);
        }
        teller.facts.begin(FactForm.TASK_ENDED)
                .word(Contract.TASK_ENDED_TASK_ATTEMPT_ID, attemptId)
                .word(Contract.TASK_ENDED_STAGE_ID, stageId)
                .word(Contract.TASK_ENDED_STAGE_ATTEMPT, stageAttempt)
                .word(Contract.TASK_ENDED_OUTCOME, outcome < 0 ? Contract.OUTCOME_SUCCESS : outcome)
                .word(Contract.TASK_ENDED_EXECUTION_MEMORY_PEAK_BYTES, held == null ? 0 : held.peakBytes())
                .text(Contract.TASK_ENDED_REASON, reason).tell();
    }

    /** What the task read, wrote, exchanged, spilled, and its times, as Spark's driver learns it with the task's end. */
    private void tellMetrics(ThreadState teller, boolean whole) {
        TaskMetrics known = metrics;
        if (known == null) {
            return;
        }
        try {
            teller.facts.begin(FactForm.TASK_METRICS)
                    .word(Contract.TASK_METRICS_TASK_ATTEMPT_ID, attemptId)
                    .word(Contract.TASK_METRICS_INPUT_BYTES, known.inputMetrics().bytesRead())
                    .word(Contract.TASK_METRICS_INPUT_RECORDS, known.inputMetrics().recordsRead())
                    .word(Contract.TASK_METRICS_OUTPUT_BYTES, known.outputMetrics().bytesWritten())
                    .word(Contract.TASK_METRICS_OUTPUT_RECORDS, known.outputMetrics().recordsWritten())
                    .word(Contract.TASK_METRICS_SHUFFLE_READ_BYTES, known.shuffleReadMetrics().totalBytesRead())
                    .word(Contract.TASK_METRICS_SHUFFLE_READ_RECORDS, known.shuffleReadMetrics().recordsRead())
                    .word(Contract.TASK_METRICS_SHUFFLE_WRITE_BYTES, known.shuffleWriteMetrics().bytesWritten())
                    .word(Contract.TASK_METRICS_SHUFFLE_WRITE_RECORDS, known.shuffleWriteMetrics().recordsWritten())
                    .word(Contract.TASK_METRICS_MEMORY_SPILLED_BYTES, known.memoryBytesSpilled())
                    .word(Contract.TASK_METRICS_DISK_SPILLED_BYTES, known.diskBytesSpilled())
                    .word(Contract.TASK_METRICS_CPU_NS, whole ? known.executorCpuTime() : -1)
                    .word(Contract.TASK_METRICS_DESERIALIZE_CPU_NS, whole ? known.executorDeserializeCpuTime() : -1)
                    .word(Contract.TASK_METRICS_RUN_MS, whole ? known.executorRunTime() : -1)
                    .word(Contract.TASK_METRICS_COLLECTION_MS, whole ? known.jvmGCTime() : -1).tell();
        } catch (Throwable e) {
            // Such as a native library of an earlier marker.
            Warnings.once("what tasks read and write is not reported", e);
        }
    }

    /** True the first time a block is read by this task. */
    synchronized boolean firstRead(long block) {
        return readsTold.size() < READS_MAX && readsTold.add(block);
    }

    synchronized void pythonWorker(ThreadState teller, Python.Service service) {
        pythonWorkers.add(service);
        tellPython(teller, service.pid, attemptId);
    }

    /** Reports the worker processes of this task, for a resync. */
    synchronized void tellPythonAgain(ThreadState teller) {
        for (Python.Service service : pythonWorkers) {
            tellPython(teller, service.pid, attemptId);
        }
    }

    /** A worker process goes back to the pool. */
    synchronized void releasePython(ThreadState teller, Python.Service service) {
        pythonWorkers.remove(service);
        if (service.end()) {
            tellPython(teller, service.pid, -1);
        }
    }

    /** The worker processes that have not gone back to the pool go now, or are ended. */
    synchronized void releasePython(ThreadState teller) {
        for (Python.Service service : pythonWorkers) {
            if (service.end()) {
                tellPython(teller, service.pid, -1);
            }
        }
        pythonWorkers.clear();
    }

    private void tellPython(ThreadState teller, long pid, long attempt) {
        long hot = attempt < 0 ? 0 : Words.tag(Contract.ACTIVITY_PYTHON_WORKER, Contract.ACCESS_NONE, Contract.REGION_NONE) | pipeline.rdd;
        teller.facts.begin(FactForm.PYTHON_WORKER)
                .word(Contract.PYTHON_WORKER_PID, pid)
                .word(Contract.PYTHON_WORKER_TASK_ATTEMPT_ID, attempt)
                .word(Contract.PYTHON_WORKER_HOT, hot)
                .word(Contract.PYTHON_WORKER_STAGE_ID, stageId)
                .word(Contract.PYTHON_WORKER_STAGE_ATTEMPT, stageAttempt).tell();
    }
}
