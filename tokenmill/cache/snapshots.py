"""Where in a text the recurrent state is kept for later requests.

A state stands for exactly one beginning, so a request can only go on from where one was kept. Kept are:
places spaced ever wider from the start (whoever shares 64 tokens or more finds one within the last
third of what is shared, or 64 tokens), the place where an earlier text parted from this one, the end of
the prompt, and, while an answer grows, its latest full block (the next turn goes on from there).
"""

from __future__ import annotations

from tokenmill.cache.spec import BLOCK_SIZE

FIRST = 64
"""Tokens before the first state that is kept."""


def last_place(num_tokens: int) -> int:
    """The last place in a text of ``num_tokens`` from which a request for it could go on."""
    return (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def next_spaced(position: int) -> int:
    """The first number above ``position`` of 64, 128, 192, 256, 384, 512, 768, ..."""
    if position < 2 * FIRST:
        return FIRST * (position // FIRST + 1)
    power = 1 << (position.bit_length() - 1)
    return power + power // 2 if position < power + power // 2 else 2 * power


def next_kept(position: int, num_tokens: int, junction: int) -> int | None:
    """The first place above ``position`` where the state of a text of ``num_tokens`` is to be kept.

    junction: where an earlier text parted from this one; 0 if none did.
    """
    last = last_place(num_tokens)
    places = (next_spaced(position), junction, last)
    return min((place for place in places if position < place <= last), default=None)
