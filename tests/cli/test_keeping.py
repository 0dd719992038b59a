from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from cli.commandline import Cli
from penstock.api import local
from penstock.core.journal import keys
from penstock.core.journal.catalog import load_record


def test_seek_moves_a_cursor_to_a_position_a_time_and_both_ends(cli: Cli, orders: str) -> None:
    assert cli("seek", "orders", "billing", "4", "--json").document == {
        "topic": "orders",
        "consumer": "billing",
        "before": None,
        "position": 4,
        "lag": 6,
    }
    assert cli("seek", "orders", "billing", "--to-end", "--json").document["position"] == 10
    assert cli("seek", "orders", "billing", "--to-time", "1h", "--json").document["position"] == 0
    assert cli("seek", "orders", "billing", "--to-start", "--json").document["lag"] == 10
    assert "10 events ahead" in cli("seek", "orders", "billing", "--to-start").out
    assert "1 event ahead" in cli("seek", "orders", "billing", "9").out


def test_seek_needs_exactly_one_destination(cli: Cli, orders: str) -> None:
    assert "POSITION" in cli("seek", "orders", "billing", code=2).err
    assert "whole number" in cli("seek", "orders", "billing", "soon", code=2).err
    cli("seek", "orders", "billing", "1", "--to-end", code=2)


def test_cursors_and_lag_show_every_consumer(cli: Cli, orders: str) -> None:
    cli("seek", "orders", "billing", "4")
    cli("seek", "orders", "mail", "--to-end")
    assert [(row["consumer"], row["position"], row["lag"]) for row in cli("cursors", "--json").documents] == [
        ("billing", 4, 6),
        ("mail", 10, 0),
    ]
    assert [(row["consumer"], row["lag"]) for row in cli("lag", "orders", "--json").documents] == [
        ("billing", 6),
        ("mail", 0),
    ]
    assert cli("lag", "--max", "6").code == 0
    assert cli("lag", "--max", "5", code=1).code == 1
    assert cli("lag", "--consumer", "mail", "--max", "0").code == 0
    cli("lag", "--consumer", "nobody", code=3)


def test_positions_of_a_dropped_topic_are_no_lag_anywhere(cli: Cli, url: str, orders: str) -> None:
    with penstock.open(url) as journal:
        journal.drop_topic("orders", force=True)
        journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(3)])
        journal.topic("orders").commit("billing", 0)
        sample = journal.stats().topics["orders"]
        assert (sample.lags, sample.positions) == ({"billing": 3}, {"billing": 0})
    for command in ("cursors", "lag"):
        assert [row["lag"] for row in cli(command, "orders", "--json").documents] == [3]
    assert cli("seek", "orders", "billing", "2", "--json").document["lag"] == 3
    assert cli("check", "--lag", "3").code == 0


def test_forget_drops_a_cursor(cli: Cli, orders: str) -> None:
    cli("seek", "orders", "billing", "4")
    cli("forget", "orders", "billing")
    assert cli("cursors", "orders", "--json").documents == []
    cli("forget", "orders", "billing", code=3)


def test_a_topic_is_dropped_after_asking(cli: Cli, orders: str) -> None:
    assert "there is a topic: `penstock drop orders --topic`" in cli("drop", "orders", "--yes", code=3).err
    cli("seek", "orders", "billing", "4")
    assert "with 10 events? This cannot be undone." in cli("drop", "orders", "--topic", input="", code=2).err
    assert "'billing' at 4" in cli("drop", "orders", "--topic", "--yes", code=1).err
    asked = cli("drop", "orders", "--topic", "--force", input="", code=2).err
    assert "with 10 events and 1 consumer?" in asked
    report = cli("drop", "orders", "--topic", "--force", "--yes", "--json").document
    assert report == {"topic": "orders", "removed": 10, "files": []}
    assert cli("topics", "--json").documents == []
    cli("drop", "orders", "--topic", "--yes", code=3)
    assert "--topic" in cli("drop", "orders", "--force", "--yes", code=2).err


def test_compact_stops_at_the_slowest_consumer_unless_forced(cli: Cli, orders: str) -> None:
    cli("seek", "orders", "billing", "4")
    report = cli("compact", "orders", "--through", "8", "--json").document
    assert (report["removed"], report["stopped_at"]) == (4, "billing")
    assert "--yes" in cli("compact", "orders", "--through", "8", "--force", input="", code=2).err
    assert cli("compact", "orders", "--through", "8", "--force", "--yes", "--json").document["remaining"] == 2
    assert "PositionTrimmed" in cli("read", "orders", "--after", "4", "--json", code=1).err


def test_compact_by_key_and_by_time(cli: Cli, orders: str) -> None:
    assert cli("compact", "orders", "--before", "1h", "--json").document["removed"] == 0
    assert cli("compact", "orders", "--keys", "--json").document["remaining"] == 3
    cli("compact", "orders", code=2)


def test_settings_are_shown_and_changed(cli: Cli, orders: str) -> None:
    assert cli("configure", "orders", "--json").document["max_age"] is None
    cli("configure", "orders", "--max-age", "30d", "--max-bytes", "2MiB", "--by-key", "yes")
    changed = cli("configure", "orders", "--json").document
    assert (changed["max_age"], changed["max_bytes"], changed["by_key"]) == (30 * 86400, 2 << 20, True)
    cli("configure", "orders", "--max-age", "none")
    assert cli("configure", "orders", "--json").document["max_age"] is None


def test_verify_finds_a_whole_store_whole(cli: Cli, orders: str) -> None:
    assert cli("verify", "--json").document == {"topic": "orders", "events": 10, "state": "whole"}


def test_verify_names_a_damaged_block_and_fails(cli: Cli, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'journal'}"
    with penstock.open(url) as journal:
        for number in range(50):
            journal.topic("t").append("k", {"number": number, "text": "x" * 100})
    data = max(
        (path for path in (tmp_path / "journal").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    size = data.stat().st_size
    with data.open("r+b") as file:
        file.seek(size // 2, os.SEEK_SET)
        file.write(b"\xff\xff\xff\xff")
    said = cli("verify", "--url", url, "--json", code=1)
    assert "Corrupt" in said.out + said.err
    assert "Traceback" not in said.err


def test_a_damaged_topic_hides_no_other_and_verify_says_from_where_on_it_can_be_read(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("whole").append("k")
        for name in ("broken", "lost", "broken", "lost"):
            journal.topic(name).append_many([penstock.Draft("k", "x" * 100_000) for _ in range(4)])
        with local(journal, "a test")._engine.write() as tx:
            for name, which in (("broken", 0), ("lost", 1)):
                record = load_record(tx, name)
                assert record is not None
                key, block = list(tx.scan(*keys.block_range(record.topic_id)))[which]
                tx.put(key, block[:-1] + bytes([block[-1] ^ 1]))
    listed = cli("topics", "--json", code=1)
    assert [row["events"] for row in listed.documents] == [None, None, 1] and "penstock verify broken" in listed.err
    first, second, _ = cli("verify", "--json", code=1).documents
    assert first["events"] == 0 and first["state"].endswith("; from 5 on it can be read")
    assert second["events"] == 4 and second["state"].endswith("; nothing behind it can be read")
    assert "`penstock verify` says what can be read" in cli("read", "broken", code=1).err
    assert [row["seq"] for row in cli("read", "broken", "--after", "4", "--json").documents] == [5, 6, 7, 8]
    cli("compact", "broken", "--through", "4")
    assert cli("verify", "broken", "--json").document["state"] == "whole"


def test_info_says_what_the_journal_is(cli: Cli, orders: str, url: str) -> None:
    said = cli("info", "--json").document
    assert (said["engine"], said["location"], said["topics"]) == ("sqlite", url, 1)
    assert "sqlite" in cli("info").out


def test_backup_is_a_whole_copy(cli: Cli, orders: str, tmp_path: Path) -> None:
    cli("backup", str(tmp_path / "copy.db"))
    assert len(cli("read", "orders", "--url", str(tmp_path / "copy.db"), "--json").documents) == 10


def test_one_word_configures_topics_and_queues(cli: Cli) -> None:
    from penstock.cli.keeping import SETTINGS
    from penstock.core.journal.catalog import Settings

    assert set(SETTINGS) | {"dedup_window"} == set(Settings.__struct_fields__)
    cli("configure", "emails", "--lease", "2m", "--max-age", "30d")
    changed = cli("configure", "emails", "--json").document
    assert (changed["queue"], changed["lease"], changed["max_age"]) == ("emails", 120, 30 * 86400)
    topic = cli("configure", "orders", "--dedup-window", "1h", "--json").document
    assert topic["topic"] == "orders" and topic["dedup_window"] == 3600 and "lease" not in topic
    assert [row["queue"] for row in cli("queues", "--json").documents] == ["emails"]
    assert "emails" in cli("configure", "emial", code=3).err


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file", "slatedb"])
def test_a_backup_is_restored_on_every_engine(cli: Cli, orders: str, url: str, tmp_path: Path, scheme: str) -> None:
    cli("push", "mail", '{"to": "ann"}')
    before = cli("read", "orders", "--json").out
    cli("copy", url, f"{scheme}:{tmp_path / 'first'}")
    cli("backup", str(tmp_path / "monday"), "--url", f"{scheme}:{tmp_path / 'first'}")
    backup, again = f"{scheme}:{tmp_path / 'monday'}", f"{scheme}:{tmp_path / 'again'}"
    said = cli("restore", backup, "--url", again, "--json").document
    assert (said["topics"], said["queues"], said["events"]) == (2, 1, 11) and "damaged" not in said
    assert cli("read", "orders", "--json", "--url", again).out == before
    assert cli("peek", "mail", "--url", again, "--json").document["payload"] == {"to": "ann"}
    refused = cli("restore", backup, "--url", again, code=2)
    assert "holds a journal already" in refused.err
    assert "no store" in cli("restore", f"{scheme}:{tmp_path / 'nowhere'}", "--url", f"{again}2", code=3).err.lower()


def test_restoring_a_damaged_backup_says_what_is_damaged(cli: Cli, orders: str, tmp_path: Path) -> None:
    backup = tmp_path / "monday.db"
    cli("backup", str(backup))
    damage_a_block(backup)
    said = cli("restore", str(backup), "--url", str(tmp_path / "again.db"), "--json", code=1)
    assert "Corrupt" in said.document["damaged"]["orders"]


def damage_a_block(path: Path) -> None:
    """Changes one byte of a block's value, which SQLite takes for any other."""
    with penstock.open(path) as journal:
        engine = local(journal, "a test")._engine
        with engine.write() as tx:
            key, value = next(row for row in tx.scan(b"b", b"c") if len(row[1]) > 50)
            tx.put(key, value[:20] + bytes([value[20] ^ 255]) + value[21:])


def test_a_proof_is_given_and_checked_without_the_journal(cli: Cli, orders: str, tmp_path: Path) -> None:
    assert "verify()" in cli("proof", "orders", "3", code=1).err
    root, proof = tmp_path / "root.json", tmp_path / "proof.json"
    root.write_text(cli("root", "orders").out)
    proof.write_text(cli("proof", "orders", "3", "--root", str(root)).out)
    assert cli("check-proof", str(proof), "--root", str(root), "--json").document == {
        "topic": "orders",
        "position": 3,
        "ok": True,
        "reason": "the event is in the history that the root stands for",
    }
    proof.write_text(proof.read_text().replace('"seq":3', '"seq":4'))
    assert cli("check-proof", str(proof), "--json", code=1).document["ok"] is False
    assert "JSON" in cli("check-proof", str(root), code=2).err


def test_a_sealed_event_is_proven_under_the_root_from_before(cli: Cli, orders: str, tmp_path: Path) -> None:
    root, proof = tmp_path / "root.json", tmp_path / "proof.json"
    root.write_text(cli("root", "orders").out)
    cli("seal", "orders", "--lake", str(tmp_path / "lake"), "--through", "6")
    proof.write_text(cli("proof", "orders", "2", "--root", str(root)).out)
    assert cli("check-proof", str(proof), "--root", str(root)).code == 0
    assert cli("root", "orders").out == root.read_text()


def test_a_root_is_signed_with_a_key_from_a_file(cli: Cli, orders: str, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo))
    root, proof = tmp_path / "root.json", tmp_path / "proof.json"
    root.write_text(cli("root", "orders", "--key", str(private)).out)
    proof.write_text(cli("proof", "orders", "7", "--root", str(root)).out)
    assert cli("check-proof", str(proof), "--key", str(public)).code == 0
    root.write_text(cli("root", "orders").out)
    proof.write_text(cli("proof", "orders", "7", "--root", str(root)).out)
    assert "not signed" in cli("check-proof", str(proof), "--key", str(public), code=1).out


def test_erase_asks_erases_and_clears_the_files(cli: Cli, url: str) -> None:
    with penstock.open(url) as journal:
        journal.topic("people").append_many(
            [penstock.Draft("k", {"name": "Ada-5ecre7", "n": n}, key=f"c{n % 2}") for n in range(6)]
        )
    refused = cli("erase", "people", "--key", "c1", code=None)
    assert refused.code != 0 and "Erase the contents of 3 events of people" in refused.out + refused.err
    done = cli("erase", "people", "--key", "c1", "--by", "ada", "--yes", "--json")
    assert (done.document["events"], done.document["topic"]) == (3, "people")
    assert "copies may remain in backups" in done.err
    masked = cli("erase", "people", "--seq", "1", "--seq", "3", "--mask", "name", "--yes")
    assert "2 events were masked in people" in masked.out
    cli("erase", "people", "--key", "c0", "--yes")
    assert all(b"5ecre7" not in path.read_bytes() for path in Path(url).parent.iterdir())
    assert "(erased)" in cli("read", "people").out
    assert '"erased-by": "ada"' in cli("show", "people", "2", "--json").out.replace('":"', '": "')
    assert "say which events" in cli("erase", "people", "--yes", code=None).err
