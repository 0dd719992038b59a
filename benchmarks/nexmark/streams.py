"""NEXMark's queries as streams, from topics to topics.

Most are the SQL of `queries.BATCH` over streaming tables. Windows are Spark's, with a watermark on `ts`; what Spark can
give in update mode only is written batch by batch, and of each key the newest row counts. What needs the answer of a
join folded (Spark gives joins in append mode only, and folds nothing after them in update mode) reads the topic that
another query writes: `won` has the bids that an auction accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.nexmark.batch import PREFIX, Answer, answer, named
from benchmarks.nexmark.generator import SCHEMAS
from benchmarks.nexmark.queries import BATCH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    import penstock

_COUNTS = """count(*) AS bids, count(*) FILTER (WHERE price < 10000) AS low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
    count(*) FILTER (WHERE price >= 1000000) AS high, size(collect_set(bidder)) AS bidders,
    size(collect_set(auction)) AS auctions"""
_DAY = "dateTime - dateTime % 86400000"
_WATERMARK = "2 seconds"


@dataclass(frozen=True)
class Query:
    """A stream: the table that it makes, and what of it is the answer."""

    sql: str | Callable[[SparkSession], DataFrame]
    key: tuple[str, ...] = ()
    """In update mode: the columns that name a row, of which the newest counts."""
    after: str = ""
    """The query whose topic this one reads."""
    answer: str = "SELECT * FROM result"
    """The rows of the answer, from the rows that were written."""


def _ids(spark: SparkSession, table: str) -> DataFrame:
    """Returns a table with its last event, which moves the watermark past all others."""
    return spark.table(f"{table}_all").withColumn("ts", F.timestamp_millis("dateTime"))


def _hot_items(spark: SparkSession) -> DataFrame:
    bids = _ids(spark, "bid").withWatermark("ts", _WATERMARK)
    counted = bids.groupBy(F.window("ts", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("bids"))
    windows = counted.groupBy("window").agg(F.collect_list(F.struct("bids", "auction")).alias("all"))
    most = windows.withColumn("most", F.array_max(F.transform("all", lambda one: one["bids"])))
    hot = most.select("window", "most", F.explode("all").alias("one")).where("one.bids = most")
    return hot.select(F.unix_millis("window.start").alias("start"), "one.auction", "one.bids")


def _highest_bids(spark: SparkSession) -> DataFrame:
    bids = _ids(spark, "bid").withWatermark("ts", _WATERMARK)
    one = F.struct("auction", "bidder", "price", "dateTime")
    by_price = bids.groupBy(F.window("ts", "10 seconds"), "price").agg(F.collect_list(one).alias("all"))
    highest = by_price.groupBy("window").agg(F.max_by("all", "price").alias("all"))
    return highest.select(F.inline("all"), F.unix_millis("window.start").alias("start"))


def _new_users(spark: SparkSession) -> DataFrame:
    start = (F.col("dateTime") - F.col("dateTime") % 10_000).alias("start")
    people = spark.table("person").select("id", "name", start)
    sellers = spark.table("auction").select(F.col("seller").alias("id"), start)
    return people.join(sellers, ["id", "start"]).select("id", "name", "start").dropDuplicates()


def _sessions(spark: SparkSession) -> DataFrame:
    bids = _ids(spark, "bid").withWatermark("ts", _WATERMARK)
    counted = bids.groupBy("bidder", F.session_window("ts", "10 seconds")).agg(
        F.count("*").alias("bids"), F.min("dateTime").alias("start"), F.max("dateTime").alias("last")
    )
    return counted.select("bidder", "bids", "start", "last")


_WON = """SELECT A.id, A.seller, A.category, B.bidder, B.price, B.dateTime FROM auction A JOIN bid B ON A.id = B.auction
    WHERE B.dateTime BETWEEN A.dateTime AND A.expires"""
WON = "id BIGINT, seller BIGINT, category BIGINT, bidder BIGINT, price BIGINT, dateTime BIGINT"

QUERIES: dict[str, Query] = {
    **{name: Query(BATCH[name]) for name in ("q0", "q1", "q2", "q3", "q13", "q14", "q20", "q21", "q22")},
    "won": Query(_WON),
    "q4": Query(
        "SELECT id, category, max(price) AS final FROM won GROUP BY id, category",
        ("id",),
        "won",
        "SELECT category, avg(final) AS average FROM result GROUP BY category",
    ),
    "q5": Query(_hot_items),
    "q7": Query(_highest_bids),
    "q8": Query(_new_users),
    "q9": Query(
        """SELECT id, max(struct(price, -dateTime AS early, -bidder AS least, seller, category)) AS best
        FROM won GROUP BY id""",
        ("id",),
        "won",
        """SELECT id, best.seller, best.category, -best.least AS bidder, best.price, -best.early AS dateTime
        FROM result""",
    ),
    "q11": Query(_sessions),
    "q15": Query(f"SELECT {_DAY} AS day, {_COUNTS} FROM bid GROUP BY {_DAY}", ("day",)),
    "q16": Query(
        f"SELECT channel, {_DAY} AS day, max(dateTime) AS last, {_COUNTS} FROM bid GROUP BY channel, {_DAY}",
        ("channel", "day"),
    ),
    "q17": Query(BATCH["q17"], ("auction", "day")),
    "q18": Query(
        "SELECT auction, bidder, max(struct(dateTime, price, channel)) AS newest FROM bid GROUP BY auction, bidder",
        ("auction", "bidder"),
        answer="SELECT auction, bidder, newest.price, newest.channel, newest.dateTime FROM result",
    ),
    "q19": Query(
        """SELECT auction, slice(sort_array(collect_list(struct(price, -dateTime AS early, bidder)), false), 1, 10) AS top
        FROM bid GROUP BY auction""",
        ("auction",),
        answer="""SELECT auction, one.bidder, one.price, -one.early AS dateTime, place + 1 AS place
        FROM result LATERAL VIEW posexplode(top) T AS place, one""",
    ),
}
"""Every query that is the same in each run; `won` is a part of q4 and q9."""

WINDOWED = ("q5", "q7", "q11")
"""Before Spark 4.2 a stream of what is there ends without closing windows: these give their rows with later events."""

LEFT_OUT = {
    "q6": "an average over a seller's last ten auctions needs them in the order of their ends, and Spark's streams have "
    "no OVER window; Flink's NEXMark leaves it out too",
    "q10": "it writes files, as any stream of Spark does, and no topic",
    "q12": "its windows are of processing time, so no two runs have the same answer",
}
"""Why a query is no stream here."""


def read(spark: SparkSession, url: str, **options: str) -> None:
    """Names streaming tables for SQL; those that end with `_all` have the last event, which is a day later."""
    for topic in SCHEMAS:
        frame = named(topic, _topic(spark, url, topic, SCHEMAS[topic], options))
        register(spark, topic, frame)
    won = _topic(spark, url, "won", WON, options)
    won.select(
        [F.col(PREFIX + field.split()[0]).alias(field.split()[0]) for field in WON.split(", ")]
    ).createOrReplaceTempView("won")


def register(spark: SparkSession, topic: str, frame: DataFrame) -> None:
    """Names one table, with and without its last event."""
    frame.createOrReplaceTempView(f"{topic}_all")
    frame.where(F.col("auction" if topic == "bid" else "id") > 0).createOrReplaceTempView(topic)


def _topic(spark: SparkSession, url: str, topic: str, schema: str, options: dict[str, str]) -> DataFrame:
    reader = spark.readStream.format("penstock").options(url=url, topic=topic, payloadSchema=schema, **options)
    columns = ", ".join(f"{PREFIX}{field}" for field in schema.split(", "))
    return reader.option("payloadPrefix", PREFIX).schema(columns).load()


def frame_of(spark: SparkSession, name: str) -> DataFrame:
    """Returns the stream of a query over the tables that are named."""
    query = QUERIES[name]
    return spark.sql(query.sql) if isinstance(query.sql, str) else query.sql(spark)


def start(spark: SparkSession, name: str, url: str, checkpoints: Path) -> StreamingQuery:
    """Starts a query that reads what is there and ends; its rows go to the topic of its name."""
    rows = frame_of(spark, name).select(F.lit("row").alias("kind"), F.struct("*").alias("payload"))
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoints / name))
    if not QUERIES[name].key:
        return writer.format("penstock").options(url=url, topic=name).start()

    def put(batch: DataFrame, number: int) -> None:
        options = {"url": url, "topic": name, "txnAppId": name, "txnVersion": str(number)}
        batch.write.format("penstock").mode("append").options(**options).save()

    return writer.outputMode("update").foreachBatch(put).start()


def read_files(spark: SparkSession, folder: Path, files: int) -> None:
    """Names streaming tables over Parquet files with JSON text, so many files of each topic in a batch."""
    for topic, schema in SCHEMAS.items():
        texts = (
            spark.readStream.schema("payload STRING").option("maxFilesPerTrigger", files).parquet(str(folder / topic))
        )
        register(spark, topic, texts.select(F.from_json("payload", schema).alias("row")).select("row.*"))


def start_to_files(spark: SparkSession, name: str, target: Path, checkpoints: Path) -> StreamingQuery:
    """Starts the same query with JSON text in Parquet files as its end."""
    rows = frame_of(spark, name).select(F.lit("row").alias("kind"), F.to_json(F.struct("*")).alias("payload"))
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(checkpoints / name))
    if not QUERIES[name].key:
        return writer.format("parquet").start(str(target / name))

    def put(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(target / name / str(number)))

    return writer.outputMode("update").foreachBatch(put).start()


def result(spark: SparkSession, journal: penstock.Journal, name: str) -> Answer:
    """Returns the answer that a query has written, in an order of its own."""
    query, schema = QUERIES[name], frame_of(spark, name).schema
    texts = [(event.raw.decode(),) for event in journal.topic(name).read()]
    if query.key:  # the newest row of each key
        rows = [(json.loads(text), text) for (text,) in texts]
        texts = [(text,) for text in {tuple(row[one] for one in query.key): text for row, text in rows}.values()]
    parsed = spark.createDataFrame(texts, "t STRING").select(F.from_json("t", schema).alias("row"))
    parsed.select("row.*").createOrReplaceTempView("result")
    return answer(spark.sql(query.answer).collect())
