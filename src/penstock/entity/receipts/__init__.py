"""Receipts that convince a third party: a Merkle tree over a topic's events, its roots, and proofs under them.

tree        the tree's hashes and paths; no input or output
proof       roots and proofs as values: signed, checked, written as JSON; needs no journal
publishing  roots over a topic, and proofs for its events
verifying   a topic beside its roots and the hashes of its events; receipts beside their events
"""
