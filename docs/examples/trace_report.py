"""What trace files say, asked with Spark itself.

    spark-submit docs/examples/trace_report.py FOLDER [APPLICATION_ID]

FOLDER is the trace folder of one worker, or one folder that those of several workers were copied into, on any file
system that Spark reads. The last line of output starts with RESULT.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(folder, application_id=None):
    # Without this Spark takes an application id of digits for a number.
    spark = (
        SparkSession.builder.appName("SMTT trace report")
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .getOrCreate()
    )
    records = spark.read.parquet(folder)
    if application_id is not None:
        # Only the folders of this application are read.
        records = records.where(f.col("application_id") == application_id)
    # A block of many ranges, as a cached DataFrame has, takes several records; only the first of them counts.
    further = f.coalesce(f.col("range_first"), f.lit(0)) > 0
    accesses = records.where(~(f.col("kind").isin("put", "get", "drop") & further))

    print("Accesses by user, application, host and kind")
    kinds = accesses.groupBy("uid", "application_id", "host", "kind").count()
    kinds.orderBy("uid", "application_id", "host", "kind").show(100, truncate=False)

    print("Reads and writes per RDD: how often each partition was put and read")
    storage = accesses.where(f.col("rdd_id").isNotNull() & (f.col("region") == "storage"))
    of_rdds = storage.groupBy("uid", "application_id", "rdd_id").agg(
        f.count_distinct("partition").alias("partitions"),
        f.sum((f.col("kind") == "put").cast("int")).alias("puts"),
        f.sum((f.col("kind") == "get").cast("int")).alias("gets"),
        f.sum((f.col("kind") == "drop").cast("int")).alias("drops"),
        f.max("size_bytes").alias("largest_block_bytes"),
    )
    of_rdds.orderBy(f.desc("gets"), "rdd_id").show(20, truncate=False)

    print("Execution memory per stage and consumer, as it was allocated")
    allocated = records.where(f.col("kind") == "allocate").groupBy(
        "uid", "application_id", "stage_id", "consumer"
    )
    allocated.agg(f.count("*").alias("allocations"), f.sum("size_bytes").alias("bytes")).orderBy(
        f.desc("bytes")
    ).show(20, truncate=False)

    print("Pages of 4 KiB that one record's addresses touch, where the bytes have an address")
    addressed = records.where(f.col("virtual_address").isNotNull() & f.col("access").isNotNull())
    addressed.groupBy("region", "access").agg(
        f.count("*").alias("records"),
        f.expr("percentile_approx(pages, 0.5)").alias("median_pages"),
        f.max("pages").alias("most_pages"),
    ).orderBy("region", "access").show(truncate=False)

    counts = {row["kind"]: row["count"] for row in accesses.groupBy("kind").count().collect()}
    # Flushed while Spark still runs: it passes on what a program prints, and what comes as it ends may get lost.
    sys.stdout.flush()
    kinds = " ".join(f"{kind}={counts[kind]}" for kind in sorted(counts))
    print(f"RESULT {sum(counts.values())} {kinds}", flush=True)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
