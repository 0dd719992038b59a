"""Roots over topics, and proofs that convince a third party."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED
from penstock.cli.values import position, the_topic
from penstock.errors import ConfigError

_file = click.Path(path_type=Path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


@command("root", "penstock root orders > root.json", "penstock root orders --key private.pem > root.json")
@the_topic
@click.option("--key", type=_file, help="sign it with this Ed25519 key (PEM)")
def root(context: CommandContext, topic: str, key: Path | None) -> int:
    """Verifies a topic and publishes the root of its Merkle tree.

    The root stands for everything in the topic through its newest position. Give it to those who should be able to
    check proofs, or sign it and give them the public key. Exit code 1 when the topic is damaged.
    """
    from penstock.entity.proof import sign_root

    with context.journal() as journal:
        report = context.existing_topic(journal, topic).verify()
    if report.broken is not None:
        context.record({"topic": topic, "broken": f"position {report.broken.seq}: {report.broken.reason}"})
        return FAILED
    if report.root is None:
        raise ConfigError(f"topic {topic!r} was compacted meanwhile: ask again")
    made = report.root if key is None else sign_root(report.root, key)
    click.echo(made.to_json())
    return DONE


@command("proof", "penstock proof orders 1234 > proof.json", "penstock proof orders 1234 --root root.json")
@the_topic
@click.argument("position", type=position, help="the event's position")
@click.option("--root", type=_file, help="under this root (as `penstock root` wrote it); else under the newest")
def proof(context: CommandContext, topic: str, position: int, root: Path | None) -> None:
    """Proves that an event is in a topic, under a root that was published.

    The proof is one line of JSON. It holds the event; `penstock check-proof` checks it, without the journal.
    """
    from penstock.entity.proof import TreeRoot

    under = None if root is None else TreeRoot.from_json(_read(root))
    with context.journal(read_only=True) as journal:
        made = context.existing_topic(journal, topic).proof(position, root=under)
    click.echo(made.to_json())


@command("check-proof", "penstock check-proof proof.json --root root.json", "penstock check-proof p.json --key pub.pem")
@click.argument("file", type=_file, help="the proof")
@click.option("--root", type=_file, help="it must be under this root")
@click.option("--key", type=_file, help="its root must be signed with the private half of this Ed25519 key (PEM)")
def check_proof(context: CommandContext, file: Path, root: Path | None, key: Path | None) -> int:
    """Checks a proof; needs no journal. Exit code 1 when it does not hold.

    What a proof is worth depends on where its root comes from: give the root, or the key that signed it.
    """
    import msgspec

    from penstock.entity import proof as proofs

    made = proofs.InclusionProof.from_json(_read(file))
    under = None if root is None else proofs.TreeRoot.from_json(_read(root))
    report = proofs.check_proof(made, root=under, public_key=key)
    context.record({"topic": made.root.topic, "position": made.seq, **msgspec.structs.asdict(report)})
    return DONE if report else FAILED
