"""NEXMark's events: people register, put things up for auction, and bid, in proportions of 1 : 3 : 46.

The shapes are those of the benchmark's own generator: a quarter of the bids is not on the hot auction, bidders and
sellers repeat, prices spread over five powers of ten. Times are milliseconds since 1970. Every topic ends with an event
a day later, whose id is 0: it moves the watermarks of streams past everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

PERSON = "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, dateTime BIGINT, extra STRING"
AUCTION = (
    "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, dateTime BIGINT, "
    "expires BIGINT, seller BIGINT, category BIGINT, extra STRING"
)
BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, dateTime BIGINT, extra STRING"
SCHEMAS = {"person": PERSON, "auction": AUCTION, "bid": BID}

STARTS_MS = 1_767_225_480_000
"""Two minutes before the end of a day."""
LAST_MS = STARTS_MS + 86_400_000
_FIRST_ID = 1000
_HOT = 4
_STATES = {"AZ": "Phoenix", "CA": "Los Angeles", "ID": "Boise", "OR": "Portland", "WA": "Seattle", "WY": "Cheyenne"}
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_LETTERS = "abcdefghijklmnopqrstuvwxyz "

Row = dict[str, Any]


class Generator:
    """Makes events one after the other; the same seed makes the same events."""

    def __init__(self, seed: int, *, step_ms: int = 1) -> None:
        self._random = Random(seed)
        self._step_ms = step_ms
        self._people = self._auctions = 0

    def events(self, count: int) -> Iterator[tuple[str, Row]]:
        """Returns `count` events, and the last one of every topic."""
        for number in range(count):
            now, place = STARTS_MS + number * self._step_ms, number % 50
            if place == 0:
                yield "person", self._person(now)
            elif place < 4:
                yield "auction", self._auction(now)
            else:
                yield "bid", self._bid(now)
        yield "person", dict.fromkeys(_names(PERSON), "") | {"id": 0, "dateTime": LAST_MS}
        numbers = dict.fromkeys(("id", "initialBid", "reserve", "seller", "category"), 0)
        yield "auction", dict.fromkeys(_names(AUCTION), "") | numbers | {"dateTime": LAST_MS, "expires": LAST_MS}
        yield "bid", dict.fromkeys(_names(BID), "") | {"auction": 0, "bidder": 0, "price": 0, "dateTime": LAST_MS}

    def _text(self, least: int, most: int) -> str:
        return "".join(self._random.choices(_LETTERS, k=self._random.randint(least, most)))

    def _price(self) -> int:
        return round(10 ** (self._random.random() * 6) * 100)

    def _recent(self, count: int, hot: int, active: int) -> int:
        """A person or an auction: mostly the hot one, else one of the last ones."""
        if self._random.randrange(hot):
            return _FIRST_ID + (count - 1) // 100 * 100
        return _FIRST_ID + self._random.randint(max(0, count - active), count - 1)

    def _person(self, now: int) -> Row:
        random, id = self._random, _FIRST_ID + self._people
        self._people += 1
        state = random.choice(list(_STATES))
        return {
            "id": id,
            "name": f"{random.choice(_FIRST_NAMES)} {random.choice(_LAST_NAMES)}",
            "emailAddress": f"{self._text(7, 7).strip()}@{self._text(5, 5).strip()}.com",
            "creditCard": " ".join(f"{random.randrange(10_000):04d}" for _ in range(4)),
            "city": _STATES[state],
            "state": state,
            "dateTime": now,
            "extra": self._text(60, 100),
        }

    def _auction(self, now: int) -> Row:
        id, first = _FIRST_ID + self._auctions, self._price()
        self._auctions += 1
        return {
            "id": id,
            "itemName": self._text(10, 20),
            "description": self._text(50, 100),
            "initialBid": first,
            "reserve": first + self._price(),
            "dateTime": now,
            "expires": now + self._random.randint(1, 2 * 50 * 100 * self._step_ms),
            "seller": self._recent(self._people, _HOT, 1000),
            "category": 10 + self._random.randrange(5),
            "extra": self._text(100, 150),
        }

    def _bid(self, now: int) -> Row:
        random = self._random
        if random.randrange(2):
            channel = random.choice(_CHANNELS)
            url = f"https://www.nexmark.com/{self._text(5, 5).strip()}/{self._text(5, 5).strip()}/item.htm?query=1"
        else:
            number = random.randrange(10_000)
            channel = f"channel-{number}"
            url = f"https://www.nexmark.com/{number % 7}/{number % 11}/item.htm?query=1&channel_id={number}"
        return {
            "auction": self._recent(self._auctions, 2, 100),
            "bidder": self._recent(self._people, _HOT, 1000),
            "price": self._price(),
            "channel": channel,
            "url": url,
            "dateTime": now,
            "extra": self._text(40, 90),
        }


def _names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]
