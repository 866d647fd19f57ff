/**
 * The marker: what each thread of an executor is doing goes into the slot file, what exists and what happens is told as
 * facts. The classes, in the order of the data flow:
 *
 * <pre>
 * Start in a JVM
 *   Agent              entry of the Java agent, at the start of a JVM or attached to a running one
 *   Attached           tasks and blocks that exist when the agent is attached late
 *   SmttPlugin         entry of the Spark plugin
 *   DriverSide         the plugin in the driver: collects descriptions, answers executors
 *   ExecutorSide       the plugin in an executor: asks for descriptions, tells tasks where there is no agent
 *   Options            options of the agent
 *   Warnings           each warning once, on standard error
 *
 * Hooks: which methods of Spark are rewritten, and how
 *   HookTable          every hooked method, as data
 *   Hook               one row of that table
 *   Transformer        rewrites a class when it is loaded or retransformed
 *   Rewriter           rewrites one method at its entry and exits
 *   CallRewriter       replaces calls inside a method
 *   MissingHooks       hooks that found no target in this Spark
 *   HookCheck          build-time check that all hooks fit a Spark version
 *
 * Callbacks: what rewritten methods call
 *   Tasks              begin and end of tasks, and the threads that work for them
 *   Reads              which RDD is materialised, and when a cached one is read
 *   Blocks             blocks that enter and leave the memory store
 *   Pages              execution memory that is acquired and released
 *   Peaks              the moments at which Spark computes peakExecutionMemory
 *   Scopes             functions of the framework, with spans for long ones
 *   Calls              calls inside a method of Spark that are scopes of their own
 *   Python             Python workers and the exchange with them
 *   Context            one ordered store on entering and leaving a frequent function
 *   Frame              what a rewritten method keeps between its entry and its exit
 *   TaskFrame          the same for the executor's task runner
 *   PullIterator       gives the thread the pipeline's word while the framework pulls a record
 *   ExactIterator      tags each record of a cached read (option exact)
 *
 * State of threads and tasks
 *   ThreadState        one thread: its slot, its buffer, its task
 *   Pipeline           user code on a thread, as a coroutine with the cached blocks that it reads
 *   Task               one running task attempt
 *   TaskNames          a task's identity from the name of its thread
 *
 * State of memory
 *   BlockRecord        one block of the memory store, with its address ranges
 *   Columns            byte arrays of a cached DataFrame
 *   Samples            which elements of a block of objects are followed, within a bound
 *   TaskMemory         pages and grants of one task memory manager
 *   Consumers          what each class of consumers of a task held, and what Spark counted of it
 *   HeapHandle         follows one object through the collector's moves
 *   Addresses          how addresses on the heap are known, and when all are told after a collection
 *
 * Descriptions of RDDs and stages
 *   StageListener      takes them from the driver's listener bus
 *   Description        one of them, its fields by name
 *   Catalogue          the latest of each on the driver
 *   Descriptions       asks for them in an executor, and tells them
 *
 * Telling
 *   ExecutorIdentity   who this JVM is; nothing is told before that
 *   Background         the marker's thread: resyncs, collections, dead threads
 *   Pace               bounds the work and the facts per second of the background thread
 *   FactWriter         writes one fact into its thread's buffer and calls its entry point
 *   FactForm           form of every fact (generated)
 *   FactLog            one line per fact in a file, for diagnosis (option log)
 *
 * The boundary
 *   Contract           constants shared with the kernel side and the daemon (generated)
 *   Words              packs and unpacks the hot word
 *   SlotFile           header words and free slots of the slot file
 *   Native             entry points and helpers of the native library
 *   LibraryFile        where the native library is
 *   Memory             raw memory
 * </pre>
 */
package io.smtt.marker;
