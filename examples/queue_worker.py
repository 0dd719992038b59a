"""A job queue with retries, a dead-letter queue and a worker, in one process and one file.

python examples/queue_worker.py
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import penstock
from penstock import Delivery, Retry


def resize(delivery: Delivery) -> None:
    """A handler: returning acknowledges, raising gives the message back."""
    if random.random() < 0.3:
        raise ConnectionError("the image server is having a moment")
    if delivery.payload["name"] == "broken.png":
        raise ValueError("not an image")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(Path(folder) / "jobs.db") as journal:
        images = journal.queue(
            "images", lease=10, max_attempts=4, retry=Retry.exponential(0.05, cap=1), dead_letter="images.dead"
        )
        images.push_many([{"name": f"{n}.png"} for n in range(40)])
        images.push({"name": "broken.png"})
        with images.worker(resize, concurrency=4):
            while len(images):
                time.sleep(0.05)
                stats = images.stats()
                print(f"ready {stats.ready:3}  in flight {stats.in_flight:2}  waiting for a retry {stats.delayed:2}")
        for letter in journal.queue("images.dead"):
            print("gave up:", letter.payload["name"], "after", letter.headers["dead-attempts"], "attempts:",
                  letter.headers["dead-error"])  # fmt: skip
        print("sent back:", images.redrive(where=lambda letter: letter.payload["name"] != "broken.png"))


if __name__ == "__main__":
    main()
