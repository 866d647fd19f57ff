/**
 * The marker: it writes each thread's activity into the slot file, and reports objects and events as facts. The
 * classes, in the order of the data flow:
 *
 * <pre>
 * Start in a JVM
 *   Agent              entry of the Java agent, at the start of a JVM or attached to a running one
 *   Attached           tasks and blocks that exist when the agent is attached late
 *   SmttPlugin         entry of the Spark plugin
 *   SelfAttach         attaches the agent to its own JVM, for the plugin
 *   DriverSide         the plugin in the driver: collects descriptions, answers executors
 *   ExecutorSide       the plugin in an executor: requests descriptions, reports tasks where there is no agent
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
 *   Fetches            requests for shuffle blocks of other executors, by task
 *   Fetch              one request, as the listener of its blocks
 *   Failures           what the JVM runs out of, and errors that no code catches
 *   Python             Python workers and the exchange with them
 *   Helpers            threads that work for one task beside its own thread
 *   Context            one ordered store on entering and leaving a frequent function
 *   Frame              state of a rewritten method between its entry and its exit
 *   TaskFrame          state of the executor's task runner between its entry and its exit
 *   PullIterator       gives the thread the pipeline's word while the framework pulls a record
 *   ExactIterator      tags each record of a cached read (option exact)
 *
 * State of threads and tasks
 *   ThreadState        one thread: its slot, its buffer, its task
 *   ThreadContext      what the thread does, in the form that OpenTelemetry's profilers read (option otel)
 *   Pipeline           user code on a thread, as a coroutine with the cached blocks that it reads
 *   Task               one running task attempt
 *   Accounts           what a task uses: the JVM's count of its heap, and the begin of the kernel's accounts
 *   TaskNames          a task's identity from the name of its thread
 *
 * State of memory
 *   BlockRecord        one block of the memory store, with its address ranges
 *   Columns            byte arrays of a cached DataFrame
 *   Samples            selects the elements to track in a block of objects, within a bound
 *   TaskMemory         pages and grants of one task memory manager
 *   Consumers          memory of each class of consumers of a task, and the bytes that Spark counted
 *   HeapHandle         tracks one object through the collector's moves
 *   MemoryFigures      where the memory of this JVM is, once per second
 *   MemoryPeaks        peaks of the executor and of each stage, under Spark's names
 *   Pauses             reports when the application stood still for the collector
 *   Addresses          tracks addresses on the heap, and reports the changes after a collection
 *
 * Descriptions of RDDs and stages
 *   StageListener      reads descriptions from the driver's listener bus
 *   PlanNode           the plan node or operation that made an RDD
 *   Description        one description, its fields by name
 *   Catalogue          the latest description of each RDD and stage, on the driver
 *   Descriptions       requests descriptions in an executor, and reports them
 *
 * The application's history, written by the driver
 *   History            begins and ends it
 *   HistoryListener    takes events from a queue of its own
 *   HistoryRow         one task attempt that ended
 *   HistoryTable       the tables' columns
 *   HistoryParts       what waits for the next part, bounded, and the thread that writes it
 *   HistoryStore       files of a part, in Spark's own Parquet
 *
 * Reporting
 *   ExecutorIdentity   the identity of this JVM; nothing is reported before it
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
 *   Published          the process's context for those profilers
 *   LibraryFile        finds the native library
 *   Memory             raw memory
 *   ForeignMemory      raw memory from JDK 24 on, where Unsafe warns
 *   ArrayLayout        offsets and sizes of the elements of primitive arrays
 * </pre>
 */
package io.smtt.marker;
