"""A server's sample, decoded: what `penstock top` and `penstock check` look at."""

from __future__ import annotations

import msgspec

from penstock.observe.sample import Sample

decode_sample = msgspec.json.Decoder(Sample).decode
