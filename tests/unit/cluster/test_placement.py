"""Placement: balanced, in order, and the same for everybody who asks."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.cluster.placement import greedy_by_bytes, round_robin

sizes = st.lists(st.integers(0, 10**12), max_size=50)


def _loads(sizes: list[int], choices: list[int], before: list[int]) -> list[int]:
    after = list(before)
    for size, ps in zip(sizes, choices, strict=True):
        after[ps] += size
    return after


@given(sizes=sizes, num_ps=st.integers(1, 9))
def test_no_job_ends_with_more_than_the_mean_plus_the_largest_shard(
    sizes: list[int], num_ps: int
) -> None:
    loads = _loads(sizes, greedy_by_bytes(sizes, [0] * num_ps), [0] * num_ps)
    # Multiplied out: whole numbers, no rounding.
    assert num_ps * max(loads) <= sum(sizes) + num_ps * max(sizes, default=0)


@given(sizes=sizes, before=st.lists(st.integers(0, 10**12), min_size=1, max_size=9))
def test_every_shard_goes_to_the_ps_with_the_fewest_bytes_by_then(
    sizes: list[int], before: list[int]
) -> None:
    loads = list(before)
    for size, ps in zip(sizes, greedy_by_bytes(sizes, before), strict=True):
        assert ps == loads.index(min(loads))
        loads[ps] += size


@given(
    sizes=sizes,
    split=st.integers(0, 50),
    before=st.lists(st.integers(0, 9), min_size=1, max_size=5),
)
def test_placing_in_two_goes_is_placing_in_one(
    sizes: list[int], split: int, before: list[int]
) -> None:
    first, second = sizes[:split], sizes[split:]
    for place in (greedy_by_bytes, round_robin):
        start = place(first, before, 0)
        loads = _loads(first, start, before)
        assert start + place(second, loads, len(first)) == place(sizes, before, 0)


def test_ties_go_to_the_lowest_index() -> None:
    assert greedy_by_bytes([4, 4, 4, 4], [0, 0, 0]) == [0, 1, 2, 0]


def test_one_hot_table_does_not_share_its_ps() -> None:
    assert greedy_by_bytes([1000, 1, 1, 1], [0, 0]) == [0, 1, 1, 1]


def test_placing_does_not_change_the_loads_it_was_given() -> None:
    loads = [0, 0]
    greedy_by_bytes([5], loads)
    assert loads == [0, 0]


def test_round_robin_counts_every_shard_ever_placed_whatever_its_size() -> None:
    assert round_robin([9, 1, 1, 1], [0, 0, 0], 0) == [0, 1, 2, 0]
    assert round_robin([9, 1], [7, 0, 0], 5) == [2, 0]


def test_nothing_to_place_is_nothing_placed() -> None:
    assert greedy_by_bytes([], [0]) == round_robin([], [0]) == []
