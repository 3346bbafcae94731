# %% [markdown]
"""
# A tour of topics in Spark

Topics as tables, streams, a join, a lake table, a copy made exactly once and a plot of lag.

Run it cell by cell in an editor that knows `# %%`, or as a whole: `python spark_tour.py [DIRECTORY]`. It needs Halfmoon
with the extra `halfmoon[lake]`, and Java 17 or newer. It starts its own broker, and leaves its files in the directory. Imports
are in the first cell that uses them.
"""
# ruff: noqa: E402

# %% A broker, in this process. In production: `halfmoon serve --data DIR`, or any RocketMQ cluster.
import json
import sys
import tempfile
from pathlib import Path

from halfmoon import Admin, ConsumeFrom, Message, Producer, PullConsumer
from halfmoon.testing.local import LocalCluster

place = Path(sys.argv[1] if len(sys.argv) > 1 and "ipykernel" not in sys.argv[0] else tempfile.mkdtemp(prefix="spark-tour-"))
broker = LocalCluster(place / "store")
broker.start()
nameserver = broker.nameserver
print("files are in", place)

# %% Two topics: sixty orders, every third one paid.
with Admin(nameserver=nameserver) as admin:
    for topic in ("orders", "payments", "large_orders"):
        admin.create_topic(topic, queue_count=2)

with Producer(group="P_shop", nameserver=nameserver) as producer:
    for number in range(60):
        order = {"id": number, "customer": f"c-{number % 7}", "cents": 100 * number}
        producer.send(Message("orders", json.dumps(order).encode(), tag="web" if number % 2 else "shop", keys=[f"o-{number}"]))
        if number % 3 == 0:
            producer.send(Message("payments", json.dumps({"order_id": number}).encode()))

# %% A session. With `master="spark://…"` or `yarn` the same code runs on a cluster.
from pyspark.sql import functions as F

from halfmoon.spark import session

spark = session("tour", warehouse=place / "warehouse", settings={"spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"})


def topic(name):
    """Return the present content of a topic, as a table."""
    return spark.read.format("halfmoon").options(endpoints=nameserver, topic=name).load()


# %% A topic is a table.
topic("orders").select("queueId", "queueOffset", "tags", "keys", F.col("body").cast("string")).orderBy("keys").show(
    5, truncate=False
)
print("orders by tag:", {row.tags: row["count"] for row in topic("orders").groupBy("tags").count().orderBy("tags").collect()})

# %% JSON bodies as columns, and a join of two topics.
orders = (
    topic("orders")
    .select(F.from_json(F.col("body").cast("string"), "id int, customer string, cents long").alias("o"))
    .select("o.*")
)
payments = topic("payments").select(F.from_json(F.col("body").cast("string"), "order_id int").alias("p")).select("p.*")
paid = orders.join(payments, orders.id == payments.order_id)
print("paid:", paid.count(), "orders,", paid.agg(F.sum("cents")).first()[0], "cents")


# %% The same as a stream, which continues at its checkpoint. With `availableNow` it ends after the existing messages.
def totals(batch, number):
    """Add one batch to a table of totals."""
    batch.groupBy("customer").agg(F.sum("cents").alias("cents")).write.mode("append").parquet(str(place / "totals"))


def stream(name, **options):
    """Return a topic as a stream, from its oldest message."""
    return (
        spark.readStream.format("halfmoon").options(endpoints=nameserver, topic=name, startingOffsets="earliest", **options).load()
    )


query = (
    stream("orders", maxOffsetsPerTrigger="20")
    .select(F.from_json(F.col("body").cast("string"), "id int, customer string, cents long").alias("o"))
    .select("o.*")
    .writeStream.foreachBatch(totals)
    .option("checkpointLocation", str(place / "checkpoints" / "totals"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(
    "streamed:",
    len(query.recentProgress),
    "batches,",
    spark.read.parquet(str(place / "totals")).agg(F.sum("cents")).first()[0],
    "cents",
)


# %% A topic to a topic, exactly once: each batch is a transaction of the brokers. A second run copies nothing twice.
def copy_large():
    """Copy orders over 40 euros that were not copied yet."""
    copying = (
        stream("orders")
        .where(F.get_json_object(F.col("body").cast("string"), "$.cents").cast("long") > 4000)
        .select("body", "keys", "tags")
        .writeStream.format("halfmoon")
        .options(endpoints=nameserver, topic="large_orders", delivery="exactly-once")
        .option("checkpointLocation", str(place / "checkpoints" / "large"))
        .trigger(availableNow=True)
        .start()
    )
    copying.awaitTermination()


copy_large()
copy_large()
print(
    "copied:", topic("large_orders").count(), "large orders,", topic("large_orders").select("keys").distinct().count(), "different"
)

# %% A lake table: Delta, or `kind="iceberg"`. Tasks write the files themselves; a second run continues.
from halfmoon.spark import LakeTable, from_ddl, ingest, layout_for

table = LakeTable(place / "lake", kind="delta")
layout = layout_for(table.root, decode="json", schema=from_ddl("id int, customer string, cents long"), partition="day")
source = {"endpoints": nameserver, "topic": "orders"}
print("ingested:", ingest(spark, table, layout, source).rows, "and again:", ingest(spark, table, layout, source).rows)

# %% The table has older messages, the log newer ones; SQL sees both as one, and no message twice.
with Producer(group="P_shop", nameserver=nameserver) as producer:
    producer.send(Message("orders", json.dumps({"id": 60, "customer": "c-4", "cents": 6000}).encode(), tag="web", keys=["o-60"]))

from halfmoon.spark import Cluster, sql

both = sql(spark, Cluster(nameserver), "select count(*), count(distinct keys) from topic.orders", archives={"orders": table})
print("table and log:", tuple(both.first()))

# %% The lag of a group, and a plot of it while the group catches up.
from halfmoon.spark import lag, lag_plot, sample_lag

seen = []
with PullConsumer(group="C_slow", nameserver=nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, batch_max=8) as consumer:
    consumer.assign(consumer.queues("orders"))
    for queue in consumer.queues("orders"):
        consumer.commit({queue: 0})
    for sample in sample_lag(Cluster(nameserver), "C_slow", "orders", every_s=0.2, for_s=60):
        seen.append(sample)
        if sample.messages == 0:
            break
        consumer.poll(timeout_ms=1000)
        consumer.commit()
lag_plot(place / "lag.png", "C_slow", seen)
print("lag:", seen[0].messages, "to", seen[-1].messages, "messages, drawn in", place / "lag.png")
print("and by queue:", [queue.messages for queue in lag(Cluster(nameserver), "C_slow", "orders")])

# %% The end.
spark.stop()
broker.stop()
