"""The oldest Spark that penstock works with: topics are read, written and followed there; at night all else, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import penstock
from penstock import Draft
from penstock.spark.versions import OLDEST

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
import penstock.spark

url, checkpoint = sys.argv[1:]
spark = penstock.spark.session("oldest", master="local[2]")
orders = spark.read.format("penstock").options(url=url, topic="orders", payloadSchema="n BIGINT").load()
said = {"version": spark.version, "sum": orders.where("seq > 10 AND kind = 'made'").selectExpr("sum(n)").first()[0]}
written = orders.selectExpr("kind", "struct(n) AS payload").write.format("penstock").mode("append")
written.options(url=url, topic="written").save()
stream = spark.readStream.format("penstock").options(url=url, topic="orders", consumer="copying").load()
copied = stream.selectExpr("kind", "payload", "id AS cause")
query = copied.writeStream.format("penstock").options(url=url, topic="copied", checkpointLocation=checkpoint).start()
query.processAllAvailable()
query.stop()
try:
    spark.readStream.format("penstock").options(url=url, topic="orders", maxOffsetsPerTrigger=10).load()
except Exception as error:
    said["limited"] = str(error)
print(json.dumps(said))
"""


def test_topics_are_read_written_and_followed_on_the_oldest_spark(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    from spark_versions import environment

    oldest = ".".join(map(str, OLDEST))
    url = str(tmp_path / "shop.db")
    with penstock.open(url) as journal:
        journal.topic("orders").append_many([Draft("made", {"n": n}) for n in range(100)])
        command = [environment(oldest), "-c", PROGRAM, url, str(tmp_path / "checkpoint")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["version"].startswith(f"{oldest}.") and said["sum"] == sum(range(10, 100))
        for name in ("written", "copied"):
            assert sorted(event.payload["n"] for event in journal.topic(name).read()) == list(range(100))
        assert journal.topic("orders").lag("copying") == 0
        assert f"maxOffsetsPerTrigger needs Spark 4.2 or newer, and this is {said['version']}" in said["limited"]
