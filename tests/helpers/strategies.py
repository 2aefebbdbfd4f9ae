"""Hypothesis strategies that several tests use."""

from hypothesis import strategies as st


def text_of(letters: str, *, min_size: int = 0, max_size: int) -> st.SearchStrategy[str]:
    """Text made of ``letters``, which become simpler towards the first one.

    Hypothesis' own ``text()`` lists every character of Unicode before its first example, whatever
    its alphabet. Without a cache from an earlier run that takes seconds, more than the health check
    ``too_slow`` allows, so a test that uses it fails on a fresh clone.
    """
    some = st.lists(st.sampled_from(letters), min_size=min_size, max_size=max_size)
    return some.map("".join)
