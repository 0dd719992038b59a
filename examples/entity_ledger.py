"""A ledger that shows every change: hashes, roots, receipts, a gate, and a copy that is still the same.

Run it: `python examples/entity_ledger.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft, Projection, on
from penstock.errors import Denied


class Account(Projection):
    balance: int = 0

    @on("booked")
    def book(self, payload: Any) -> None:
        self.balance += payload["amount"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with penstock.open(Path(folder) / "ledger.db") as journal:
            ledger = journal.topic("ledger")
            ledger.configure(verified=True)

            def no_overdraft(draft: Draft) -> None:
                account = ledger.project(Account, draft.key)
                if (account.balance if account else 0) + draft.payload["amount"] < 0:
                    raise Denied(f"{draft.key} has not got that much")

            ledger.gate(no_overdraft, kind="booked", record="refusals")
            receipts = [ledger.append("booked", {"amount": 100}, key="ada")]
            with journal.fence() as fence:  # both bookings, or none
                fence.submit(ledger, "booked", {"amount": -30}, key="ada")
                fence.submit(ledger, "booked", {"amount": 30}, key="bob", cause=0)
            try:
                ledger.append("booked", {"amount": -100}, key="ada")
            except Denied as denied:
                print("refused:", denied.reason)
            print("ada:", ledger.project(Account, "ada"), " bob:", ledger.project(Account, "bob"))
            print("verified:", ledger.verify())
            journal.export(Path(folder) / "copy")
        with penstock.open(Path(folder) / "copy.db") as copy:
            copy.import_(Path(folder) / "copy")
            print("the receipt, checked against the copy:", copy.topic("ledger").check(receipts[0]).reason)


if __name__ == "__main__":
    main()
