"""NEXMark's queries, as SQL that Spark and DuckDB both understand, and as streams of Spark.

The tables are `person`, `auction` and `bid`; `side` is the small table of q13. Times are milliseconds, so that windows
are arithmetic that both compute alike; streams use Spark's own windows.
"""

from __future__ import annotations

_DAY = "dateTime - dateTime % 86400000"
_WINNING = """SELECT * FROM (
    SELECT A.id, A.seller, A.category, A.expires, B.bidder, B.price, B.dateTime,
      row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime, B.bidder) AS place
    FROM auction A JOIN bid B ON A.id = B.auction
    WHERE B.dateTime BETWEEN A.dateTime AND A.expires) W WHERE place = 1"""
_BY_PRICE = """count(*) FILTER (WHERE price < 10000) AS low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
    count(*) FILTER (WHERE price >= 1000000) AS high"""

BATCH = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": """SELECT auction, bidder, CAST(price AS DOUBLE) * CAST(0.908 AS DOUBLE) AS price, dateTime, extra
    FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
    WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": """SELECT category, avg(final) AS average FROM (
      SELECT A.id, A.category, max(B.price) AS final FROM auction A JOIN bid B ON A.id = B.auction
      WHERE B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, A.category) F GROUP BY category""",
    "q5": """WITH counted AS (
      SELECT auction, dateTime - dateTime % 2000 - 2000 * k AS start, count(*) AS bids
      FROM bid CROSS JOIN (SELECT 0 AS k UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4) H
      GROUP BY auction, dateTime - dateTime % 2000 - 2000 * k)
    SELECT C.start, C.auction, C.bids FROM counted C
    JOIN (SELECT start, max(bids) AS most FROM counted GROUP BY start) M ON C.start = M.start AND C.bids = M.most""",
    "q6": f"""SELECT seller, id, avg(price) OVER (
      PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
    FROM ({_WINNING}) V""",
    "q7": """SELECT B.auction, B.bidder, B.price, B.dateTime, M.start FROM bid B JOIN (
      SELECT max(price) AS price, dateTime - dateTime % 10000 AS start FROM bid GROUP BY dateTime - dateTime % 10000) M
    ON B.price = M.price AND B.dateTime - B.dateTime % 10000 = M.start""",
    "q8": """SELECT P.id, P.name, P.start FROM (
      SELECT DISTINCT id, name, dateTime - dateTime % 10000 AS start FROM person) P JOIN (
      SELECT DISTINCT seller, dateTime - dateTime % 10000 AS start FROM auction) A
    ON P.id = A.seller AND P.start = A.start""",
    "q9": f"SELECT id, seller, category, bidder, price, dateTime FROM ({_WINNING}) V",
    "q11": """SELECT bidder, count(*) AS bids, min(dateTime) AS start, max(dateTime) AS last FROM (
      SELECT bidder, dateTime, sum(begins) OVER (PARTITION BY bidder ORDER BY dateTime
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS session FROM (
        SELECT bidder, dateTime, CASE WHEN dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime) <= 10000
          THEN 0 ELSE 1 END AS begins FROM bid) L) S GROUP BY bidder, session""",
    "q13": """SELECT B.auction, B.bidder, B.price, B.dateTime, S.value FROM bid B JOIN side S
    ON B.auction % 10000 = S.key""",
    "q14": """SELECT auction, bidder, CAST(price AS DOUBLE) * CAST(0.908 AS DOUBLE) AS price,
      CASE WHEN dateTime % 86400000 >= 28800000 AND dateTime % 86400000 <= 64800000 THEN 'dayTime'
      WHEN dateTime % 86400000 <= 21600000 OR dateTime % 86400000 >= 72000000 THEN 'nightTime'
      ELSE 'otherTime' END AS bidTimeType, dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS cs
    FROM bid WHERE CAST(price AS DOUBLE) * CAST(0.908 AS DOUBLE) > 1000000 AND price * 908 < 50000000000""",
    "q15": f"""SELECT {_DAY} AS day, count(*) AS bids, {_BY_PRICE}, count(DISTINCT bidder) AS bidders,
      count(DISTINCT auction) AS auctions FROM bid GROUP BY {_DAY}""",
    "q16": f"""SELECT channel, {_DAY} AS day, max(dateTime) AS last, count(*) AS bids, {_BY_PRICE},
      count(DISTINCT bidder) AS bidders, count(DISTINCT auction) AS auctions FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""SELECT auction, {_DAY} AS day, count(*) AS bids, {_BY_PRICE}, min(price) AS least, max(price) AS most,
      avg(price) AS average, sum(price) AS total FROM bid GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, channel, dateTime FROM (
      SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place FROM bid) L
    WHERE place = 1""",
    "q19": """SELECT auction, bidder, price, dateTime, place FROM (
      SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS place FROM bid) L
    WHERE place <= 10""",
    "q20": """SELECT B.auction, B.bidder, B.price, B.dateTime, A.itemName, A.seller, A.category FROM bid B
    JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
      WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS id
    FROM bid WHERE lower(channel) IN ('apple', 'google', 'facebook', 'baidu') OR url LIKE '%channel_id=%'""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
      split_part(url, '/', 6) AS dir3 FROM bid""",
}
"""All but those of `LEFT_OUT`. A session of q11 goes on with a bid exactly 10 s after the last one, as Spark's does."""

LEFT_OUT = {
    "q10": "it writes q0 to files, as any query of Spark does, and no topic",
    "q12": "its windows are of processing time, so no two runs have the same answer",
}
"""Why a query has no batch form."""
