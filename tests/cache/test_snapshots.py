"""Where states are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.cache.snapshots import last_place, next_kept, next_spaced


def kept(num_tokens: int, junction: int = 0) -> list[int]:
    places, place = [], next_kept(0, num_tokens, junction)
    while place is not None:
        places.append(place)
        place = next_kept(place, num_tokens, junction)
    return places


def test_places() -> None:
    assert kept(1000) == [64, 128, 192, 256, 384, 512, 768, 992]
    assert kept(1000, junction=400) == [64, 128, 192, 256, 384, 400, 512, 768, 992]
    assert kept(16) == []
    assert kept(17) == [16]
    assert kept(64, junction=480) == [48]


@given(st.integers(0, 10**6))
def test_spacing_never_leaves_more_than_a_third(position: int) -> None:
    place = next_spaced(position)
    assert position < place
    assert place % 16 == 0
    assert place - position <= max(64, place // 3 + 1)


@given(st.integers(1, 5000), st.integers(0, 400))
def test_places_are_blocks_within_the_text(num_tokens: int, junction: int) -> None:
    places = kept(num_tokens, junction * 16)
    assert places == sorted(set(places))
    assert all(place % 16 == 0 and place <= last_place(num_tokens) for place in places)
    assert not last_place(num_tokens) or places[-1] == last_place(num_tokens)
