"""One uniform number for each token of each answer, whatever else happens in between."""

from __future__ import annotations

import hashlib
import struct


def uniform(seed: int, sample: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: 53 bits of a hash of them.

    seed: any integer (its low 64 bits count). sample: which of the n answers. position: which token.
    """
    message = struct.pack("<QQQ", seed & 0xFFFF_FFFF_FFFF_FFFF, sample, position)
    digest = hashlib.blake2b(message, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
