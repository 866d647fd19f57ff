package io.smtt.marker;

import static io.smtt.marker.Hook.Kind.ARGUMENT;
import static io.smtt.marker.Hook.Kind.CALL;
import static io.smtt.marker.Hook.Kind.ENTRY;
import static io.smtt.marker.Hook.Kind.EXIT;
import static io.smtt.marker.Hook.Kind.HOT;
import static io.smtt.marker.Hook.Kind.LONG_RESULT;
import static io.smtt.marker.Hook.Kind.PULL;
import static io.smtt.marker.Hook.Kind.RESULT;
import static io.smtt.marker.Hook.Kind.RETURN;
import static io.smtt.marker.Hook.Kind.SCOPE;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Every place in Spark that the marker hooks, as data. docs/ATTRIBUTION.md explains each tag.
 *
 * <p>Descriptors are those of Spark 3.5.9, 4.0.5 and 4.3.0; where they differ the row matches by a part of it.
 */
final class HookTable {
    private static final List<Hook> ROWS = new ArrayList<>();
    private static final Map<String, List<Hook>> BY_CLASS = new HashMap<>();

    private static final String S = "org/apache/spark/";
    private static final String ITERATOR = "(Lscala/collection/Iterator;)V";
    private static final String CONSUMER = "Lorg/apache/spark/memory/MemoryConsumer;)";
    private static final String SPILL = "(J" + CONSUMER + "J";
    private static final String BLOCK_ID = "(Lorg/apache/spark/storage/BlockId;";

    private HookTable() {}

    static {
        tasks();
        rdds();
        storage();
        execution();
        pools();
        functions();
        python();
        helpers();
    }

    static Hook at(int index) {
        return ROWS.get(index);
    }

    /** The rows of a class by its internal name, or null. */
    static List<Hook> of(String className) {
        return BY_CLASS.get(className);
    }

    static Iterable<String> classes() {
        return BY_CLASS.keySet();
    }

    private static Hook on(Hook.Kind kind, String className, String method, String descriptor) {
        Hook hook = new Hook(kind, S + className, method, descriptor);
        hook.index = ROWS.size();
        ROWS.add(hook);
        BY_CLASS.computeIfAbsent(hook.className, name -> new ArrayList<>()).add(hook);
        return hook;
    }

    /** The task that a thread works for. */
    private static void tasks() {
        on(SCOPE, "executor/Executor$TaskRunner", "run", "()V").to("Tasks", "begin", 0).ends("Tasks", "end");
        on(CALL, "executor/Executor$TaskRunner", "*", "*").to("Tasks", "statusUpdate")
                .call(S + "executor/ExecutorBackend", "statusUpdate", "(JLscala/Enumeration$Value;Ljava/nio/ByteBuffer;)V");
        // The type of the cpus argument changed in 4.3.
        on(ENTRY, "scheduler/Task", "run", "(JI*").to("Tasks", "job", 0);
        on(ENTRY, "TaskContext$", "setTaskContext", "(Lorg/apache/spark/TaskContext;)V").to("Tasks", "set", 1);
        on(ENTRY, "TaskContext$", "unset", "()V").to("Tasks", "unset");
        on(ENTRY, "TaskContextImpl", "markTaskFailed", "(Ljava/lang/Throwable;)V").to("Tasks", "failed", 0, 1);
        on(ENTRY, "util/SparkUncaughtExceptionHandler", "uncaughtException", "(Ljava/lang/Thread;Ljava/lang/Throwable;)V")
                .to("Failures", "uncaught", 2);
        for (String task : new String[] {"scheduler/ShuffleMapTask", "scheduler/ResultTask"}) {
            on(CALL, task, "runTask", "*").to("Calls", "deserialize")
                    .call(S + "serializer/SerializerInstance", "deserialize",
                            "(Ljava/nio/ByteBuffer;Ljava/lang/ClassLoader;Lscala/reflect/ClassTag;)Ljava/lang/Object;");
        }
    }

    /** The RDD that is materialised or read. */
    private static void rdds() {
        String compute = "(Lorg/apache/spark/Partition;Lorg/apache/spark/TaskContext;)Lscala/collection/Iterator;";
        on(ENTRY, "rdd/RDD", "iterator", compute).to("Reads", "first", 0, 1);
        // Up to 3.5 the shuffle's writer is made, and allocates, before the iterator is asked for.
        String writer = "shuffle/ShuffleWriteProcessor";
        on(ENTRY, writer, "write", "(Lorg/apache/spark/rdd/RDD;*").to("Reads", "first", 1, 5);
        on(ENTRY, writer, "write", "(Lscala/collection/Iterator;*").to("Reads", "asked");
        on(RESULT, "rdd/RDD", "getOrCompute", compute).to("Reads", "begin", 0, 1).ends("Reads", "end");
        on(ENTRY, "storage/BlockManager", "releaseLock", BLOCK_ID + "Lscala/Option;)V").to("Reads", "release", 1);
    }

    /** The blocks in memory. */
    private static void storage() {
        String store = "storage/memory/MemoryStore";
        String map = "java/util/LinkedHashMap";
        on(PULL, store, "putIterator", "(Lorg/apache/spark/storage/BlockId;Lscala/collection/Iterator;*").to("Blocks", "beginUnroll", 1)
                .replaces(2).ends("Scopes", "endPull").tag(Contract.ACTIVITY_CACHE_WRITE, Contract.ACCESS_WRITE, Contract.REGION_STORAGE);
        on(CALL, store, "*", "*").to("Blocks", "put").call(map, "put", "(Ljava/lang/Object;Ljava/lang/Object;)Ljava/lang/Object;");
        on(CALL, store, "*", "*").to("Blocks", "remove").call(map, "remove", "(Ljava/lang/Object;)Ljava/lang/Object;");
        on(CALL, store, "*", "*").to("Blocks", "clear").call(map, "clear", "()V");
        on(SCOPE, "storage/BlockManager", "dropFromMemory", BLOCK_ID + "*").to("Blocks", "beginDrop", 1).ends("Scopes", "end")
                .tag(Contract.ACTIVITY_EVICT, Contract.ACCESS_READ, Contract.REGION_STORAGE).span("BlockManager.dropFromMemory");
        String broadcast = "broadcast/TorrentBroadcast";
        on(SCOPE, broadcast, "readBroadcastBlock", "()Ljava/lang/Object;")
                .tag(Contract.ACTIVITY_BROADCAST, Contract.ACCESS_NONE, Contract.REGION_STORAGE)
                .span("TorrentBroadcast.readBroadcastBlock");
        on(SCOPE, broadcast, "writeBlocks", "(Ljava/lang/Object;)I").tag(Contract.ACTIVITY_BROADCAST, Contract.ACCESS_NONE, Contract.REGION_STORAGE)
                .span("TorrentBroadcast.writeBlocks");
    }

    /** The execution memory that is held. */
    private static void execution() {
        String manager = "memory/TaskMemoryManager";
        String acquire = "(J" + CONSUMER + "J";
        String release = "(J" + CONSUMER + "V";
        on(RETURN, manager, "allocatePage", "(J" + CONSUMER + "Lorg/apache/spark/unsafe/memory/MemoryBlock;").to("Pages", "allocated", 0, 2);
        // The manager's own calls are those of a page that it allocates or frees, in whichever method of it they are.
        on(CALL, manager, "*", "*").to("Pages", "acquireForPage").call(S + manager, "acquireExecutionMemory", acquire);
        on(ENTRY, manager, "freePage", "(Lorg/apache/spark/unsafe/memory/MemoryBlock;" + CONSUMER + "V").to("Pages", "freed", 0, 1);
        on(CALL, manager, "*", "*").to("Pages", "releaseForPage").call(S + manager, "releaseExecutionMemory", release);
        on(LONG_RESULT, manager, "acquireExecutionMemory", acquire).to("Pages", "beginAcquire", 0, 2).ends("Pages", "endAcquire");
        on(ENTRY, manager, "releaseExecutionMemory", release).to("Pages", "released", 0, 1, 2);
        String sorter = "util/collection/";
        for (String consumer : new String[] {"shuffle/sort/ShuffleExternalSorter", sorter + "unsafe/sort/UnsafeExternalSorter",
                "unsafe/map/BytesToBytesMap"}) {
            on(ENTRY, consumer, "updatePeakMemoryUsed", "()V").to("Peaks", "seen", 0);
            on(ENTRY, consumer, "getPeakMemoryUsedBytes", "()J").to("Peaks", "asked", 0);
        }
        for (String collection : new String[] {"ExternalSorter", "ExternalAppendOnlyMap"}) {
            on(ENTRY, sorter + collection, "peakMemoryUsedBytes", "()J").to("Peaks", "asked", 0);
        }
        on(ENTRY, "executor/TaskMetrics", "incPeakExecutionMemory", "(J)V").to("Peaks", "counted", 1);
        on(ENTRY, manager, "cleanUpAllAllocatedMemory", "()J").to("Pages", "cleaned", 0);
    }

    /** The use of Spark's pools, of all tasks and blocks together, and Spark's own polls of it. */
    private static void pools() {
        String unified = "memory/UnifiedMemoryManager";
        on(EXIT, unified, "acquireExecutionMemory", "(JJ*").to("MemoryPeaks", "pools", 0);
        on(EXIT, unified, "acquireStorageMemory", BLOCK_ID + "*").to("MemoryPeaks", "pools", 0);
        String manager = "memory/MemoryManager";
        on(EXIT, manager, "releaseExecutionMemory", "(JJ*").to("MemoryPeaks", "pools", 0);
        on(EXIT, manager, "releaseAllExecutionMemoryForTask", "(J)J").to("MemoryPeaks", "pools", 0);
        on(EXIT, manager, "releaseStorageMemory", "(J*").to("MemoryPeaks", "pools", 0);
        on(EXIT, manager, "releaseAllStorageMemory", "()V").to("MemoryPeaks", "pools", 0);
        on(RETURN, "executor/ExecutorMetrics$", "getCurrentMetrics", "(Lorg/apache/spark/memory/MemoryManager;)[J").to("MemoryPeaks", "polled");
    }

    /** The running function of the framework. */
    private static void functions() {
        for (String writer : new String[] {"UnsafeShuffleWriter", "SortShuffleWriter", "BypassMergeSortShuffleWriter"}) {
            on(PULL, "shuffle/sort/" + writer, "write", ITERATOR).to("Scopes", "beginPull").ends("Scopes", "endPull")
                    .tag(Contract.ACTIVITY_SHUFFLE_WRITE, Contract.ACCESS_WRITE, Contract.REGION_EXECUTION);
        }
        for (String map : new String[] {"ExternalSorter", "ExternalAppendOnlyMap"}) {
            on(PULL, "util/collection/" + map, "insertAll", ITERATOR).to("Scopes", "beginPull").ends("Scopes", "endPull")
                    .tag(Contract.ACTIVITY_INSERT, Contract.ACCESS_WRITE, Contract.REGION_EXECUTION);
        }
        sort("shuffle/sort/ShuffleInMemorySorter", "getSortedIterator", "()*");
        sort("util/collection/unsafe/sort/UnsafeInMemorySorter", "getSortedIterator", "()*");
        sort("util/collection/unsafe/sort/UnsafeExternalSorter", "getSortedIterator", "()*");
        sort("util/collection/ExternalSorter", "partitionedIterator", "()*");
        sort("sql/execution/UnsafeExternalRowSorter", "sort", "()*");
        spill("shuffle/sort/ShuffleExternalSorter", "spill", SPILL);
        spill("util/collection/unsafe/sort/UnsafeExternalSorter", "spill", SPILL);
        spill("unsafe/map/BytesToBytesMap", "spill", SPILL);
        spill("unsafe/map/BytesToBytesMap$MapIterator", "spill", "(J)J");
        spill("util/collection/Spillable", "spill", SPILL);
        spill("util/collection/ExternalSorter", "spill", "(Lorg/apache/spark/util/collection/WritablePartitionedPairCollection;)V");
        spill("util/collection/ExternalAppendOnlyMap", "spill", "(Lorg/apache/spark/util/collection/SizeTracker;)V");
        spill("sql/execution/joins/LongToUnsafeRowMap", "spill", SPILL);
        merge("shuffle/sort/UnsafeShuffleWriter", "closeAndWriteOutput", "()V");
        merge("shuffle/sort/BypassMergeSortShuffleWriter", "writePartitionedData", "*");
        merge("util/collection/ExternalSorter", "writePartitionedMapOutput", "*");
        merge("util/collection/ExternalSorter", "merge", "*");
        merge("util/collection/unsafe/sort/UnsafeSorterSpillMerger", "getSortedIterator", "()*");
        on(SCOPE, "unsafe/map/BytesToBytesMap", "growAndRehash", "()V")
                .tag(Contract.ACTIVITY_HASH_GROW, Contract.ACCESS_WRITE, Contract.REGION_EXECUTION)
                .span("BytesToBytesMap.growAndRehash");
        // The queue became a deque in 4.3, and the call moved into a lambda: any method of the class.
        for (String queue : new String[] {"java/util/concurrent/LinkedBlockingQueue", "java/util/concurrent/LinkedBlockingDeque"}) {
            on(CALL, "storage/ShuffleBlockFetcherIterator", "*", "*").to("Calls", "take").call(queue, "take", "()Ljava/lang/Object;");
        }
        // Every request to another executor or a shuffle service, and no local read.
        on(CALL, "storage/ShuffleBlockFetcherIterator", "*", "*").to("Fetches", "request").call(S + "network/shuffle/BlockStoreClient", "fetchBlocks",
                "(Ljava/lang/String;ILjava/lang/String;[Ljava/lang/String;Lorg/apache/spark/network/shuffle/BlockFetchingListener;"
                        + "Lorg/apache/spark/network/shuffle/DownloadFileManager;)V");
    }

    private static void sort(String className, String method, String descriptor) {
        named(on(SCOPE, className, method, descriptor).tag(Contract.ACTIVITY_SORT, Contract.ACCESS_WRITE, Contract.REGION_EXECUTION));
    }

    private static void spill(String className, String method, String descriptor) {
        named(on(SCOPE, className, method, descriptor).tag(Contract.ACTIVITY_SPILL, Contract.ACCESS_READ, Contract.REGION_EXECUTION));
    }

    private static void merge(String className, String method, String descriptor) {
        named(on(SCOPE, className, method, descriptor).tag(Contract.ACTIVITY_MERGE, Contract.ACCESS_READ, Contract.REGION_EXECUTION));
    }

    private static void named(Hook hook) {
        hook.span(hook.group);
    }

    /** The exchange with Python workers. */
    private static void python() {
        String runner = "api/python/BasePythonRunner";
        on(ARGUMENT, runner, "compute", "(Lscala/collection/Iterator;ILorg/apache/spark/TaskContext;)Lscala/collection/Iterator;")
                .to("Python", "input");
        on(HOT, runner + "$ReaderIterator", "hasNext", "()Z")
                .tag(Contract.ACTIVITY_PYTHON_EXCHANGE, Contract.ACCESS_NONE, Contract.REGION_NONE);
        on(HOT, runner + "$ReaderIterator", "next", "()Ljava/lang/Object;")
                .tag(Contract.ACTIVITY_PYTHON_EXCHANGE, Contract.ACCESS_NONE, Contract.REGION_NONE);
        on(RETURN, "api/python/PythonWorkerFactory", "create", "()Lscala/Tuple2;").to("Python", "created");
        on(ENTRY, "api/python/PythonWorkerFactory", "releaseWorker", "(L*").to("Python", "released", 1);
    }

    /** Threads of Spark's own that work for one task beside the task's thread. Each sets the task's context itself. */
    private static void helpers() {
        String python = "api/python/BasePythonRunner";
        String run = "()V";
        on(SCOPE, python + "$WriterThread", "run", run).helps(Contract.HELPER_PYTHON_WRITER);
        on(SCOPE, python + "$PipelinedWriterRunnable", "run", run).helps(Contract.HELPER_PYTHON_WRITER);
        on(SCOPE, "api/r/BaseRRunner$WriterThread", "run", run).helps(Contract.HELPER_R_WRITER);
        // The reader of the command's errors is another class, and sets no context.
        on(SCOPE, "rdd/PipedRDD$$anon$2", "run", run).helps(Contract.HELPER_PIPE_WRITER);
        on(SCOPE, "sql/execution/BaseScriptTransformationWriterThread", "run", run).helps(Contract.HELPER_SCRIPT_WRITER);
    }
}
