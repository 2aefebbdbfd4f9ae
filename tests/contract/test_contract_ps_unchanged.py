"""What did not change since the last pull is neither sent nor copied, over any connection."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.ps_peers import (
    ADD,
    APPLY,
    ASSIGN,
    CONNECTIONS,
    F32,
    PULL,
    Get,
    Ps,
    Worker,
    faults_on,
    get,
    put,
    vector,
)
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import RefusedError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ropewalk.core.wire.steps import LayoutEntry, StepRequest, WireLayout

SMALL_PULL = 64 * 1024  # up to this a pull is sent whole
BIG = [vector(name, 70_000) for name in "abcd"]  # each has a block of its own
BIG_BYTES = 70_000 * 4
GETS = [get(each) for each in BIG]


@pytest.fixture(params=CONNECTIONS)
def ps(request: pytest.FixtureRequest) -> Iterator[Ps]:
    """A ps that is reached over each connection."""
    made = Ps(request.param)
    yield made
    made.close()


def again(
    worker: Worker, gets: Sequence[Get], into: Sequence[Array], previous: Sequence[Array] | None
) -> int:
    """Pull; returns the bytes that came."""
    request = worker.request((), gets, has_previous=previous is not None)
    return worker.exchange(request, into, previous).pulled_bytes


def rooms(gets: Sequence[Get] = GETS) -> list[Array]:
    arrays = [each.room() for each in gets]
    for array in arrays:
        array.fill(np.nan)
    return arrays


def are(arrays: Sequence[Array], *expected: float) -> None:
    assert [(float(a.min()), float(a.max())) for a in arrays] == [(e, e) for e in expected]


@pytest.mark.parametrize("memory", ["same", "other"])
def test_only_what_changed_comes_and_the_rest_is_there(ps: Ps, memory: str) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    latest = rooms()
    assert again(worker, GETS, latest, None) == 4 * BIG_BYTES
    expected = [0.0, 0.0, 0.0, 0.0]
    for changes in ([1], [], [0, 3], [0, 1, 2, 3], [2], []):
        for i in changes:
            expected[i] += 1
        if changes:
            worker.push(*(put(BIG[i], ASSIGN, expected[i]) for i in changes))
        into = latest if memory == "same" else rooms()
        moved = again(worker, GETS, into, latest)
        are(into, *expected)
        # Out of shared memory into other memory everything is copied once, from wherever.
        copies = ps.kind == "local" or (ps.kind == "shm" and memory == "other")
        assert moved == (4 if copies else len(changes)) * BIG_BYTES
        latest = into


def test_without_previous_values_everything_comes(ps: Ps) -> None:
    worker = ps.worker()
    worker.create(*BIG)
    for _ in range(3):
        into = rooms()
        assert again(worker, GETS, into, None) == 4 * BIG_BYTES
        are(into, 0, 0, 0, 0)


def test_a_push_and_its_own_pull_bring_what_it_changed(ps: Ps) -> None:
    worker, into = ps.worker(), rooms()
    worker.create(*BIG)
    worker.peer.bind(["b"], SGD(learning_rate=1.0))
    again(worker, GETS, into, None)
    for step in range(1, 4):
        request = worker.request([put(BIG[1], APPLY, -1)], GETS, has_previous=True)
        result = worker.exchange(request, into, into)
        are(into, 0, step, 0, 0)
        assert result.pulled_bytes == (4 if ps.kind == "local" else 1) * BIG_BYTES


@pytest.mark.parametrize("count", [SMALL_PULL // 4, SMALL_PULL // 4 + 1], ids=["at", "over"])
def test_a_pull_up_to_64_kib_comes_whole(ps: Ps, count: int) -> None:
    worker, gets = ps.worker(), [get(vector("w", count))]
    worker.create(vector("w", count))
    into = rooms(gets)
    again(worker, gets, into, None)
    moved = again(worker, gets, into, into)
    are(into, 0)
    whole = ps.kind == "local" or count * 4 <= SMALL_PULL
    assert moved == (count * 4 if whole else 0)


def test_pulls_of_different_layouts_are_told_apart(ps: Ps) -> None:
    worker, first, second = ps.worker(), rooms(), rooms()
    worker.create(*BIG)
    again(worker, GETS, first, None)
    worker.push(put(BIG[0], ASSIGN, 1))
    again(worker, GETS[::-1], second, None)
    worker.push(put(BIG[1], ASSIGN, 2))
    again(worker, GETS[::-1], second, second)
    are(second, 0, 0, 2, 1)
    again(worker, GETS, first, first)
    are(first, 1, 2, 0, 0)


def test_a_number_that_stands_for_another_layout_now_knows_nothing_of_the_old_one(ps: Ps) -> None:
    worker, into = ps.worker(), rooms()
    worker.create(*BIG)
    worker.push(*(put(each, ASSIGN, i) for i, each in enumerate(BIG)))
    for order in itertools.islice(itertools.permutations(range(4)), 12):
        layout = WireLayout(1_000, tuple(GETS[i].entry for i in order))
        request = StepRequest(pull=layout, has_previous=True)
        # Whatever is in that memory: it was not pulled by this layout.
        assert worker.exchange(request, into, into).pulled_bytes == 4 * BIG_BYTES
        are(into, *order)
        worker.exchange(request, into, into)
        are(into, *order)


def test_many_small_variables_that_share_a_block(ps: Ps) -> None:
    """One of them changes: its block is written, but over a stream only its own bytes travel."""
    worker, rng = ps.worker(), np.random.default_rng(0)
    small = [vector(f"v{i}", 1 + i % 20) for i in range(3000)]
    sizes = [each.shape[0] for each in small]
    worker.create(*small)
    entries = [LayoutEntry(v.name, 0, PULL, num_bytes=v.num_bytes) for v in small]
    layout, into = worker.layout(entries), np.empty(sum(sizes), F32)
    expected, starts = np.zeros(sum(sizes), F32), np.cumsum([0, *sizes])
    assert worker.exchange(StepRequest(pull=layout), [into]).pulled_bytes == into.nbytes
    for value in range(1, 6):
        chosen = sorted(rng.choice(len(small), 20, replace=False).tolist())
        worker.push(*(put(small[i], ASSIGN, value) for i in chosen))
        for i in chosen:
            expected[starts[i] : starts[i + 1]] = value
        request = StepRequest(pull=layout, has_previous=True)
        moved = worker.exchange(request, [into], [into.copy()]).pulled_bytes
        np.testing.assert_array_equal(into, expected)
        if ps.kind not in ("local", "shm"):
            assert moved == sum(small[i].num_bytes for i in chosen)


def test_what_another_worker_pushed_between_is_seen(ps: Ps) -> None:
    worker, other, into = ps.worker(0), ps.worker(1), rooms()
    worker.create(*BIG)
    other.define(*BIG)
    again(worker, GETS, into, None)
    for value in range(1, 5):
        other.push(put(BIG[value % 4], ASSIGN, value))
        again(worker, GETS, into, into)
        for mine, fresh in zip(into, other.pull(*GETS), strict=True):
            np.testing.assert_array_equal(mine, fresh)


def test_a_refused_step_between_changes_nothing(ps: Ps) -> None:
    worker, into = ps.worker(), rooms()
    worker.create(*BIG)
    again(worker, GETS, into, None)
    for value in range(1, 4):
        worker.push(put(BIG[0], ASSIGN, value))
        request = worker.request([put(BIG[0], APPLY, 100)], GETS, has_previous=True)
        with pytest.raises(RefusedError, match="no update rule"):
            worker.exchange(request, into, into)
        are(into, value - 1, 0, 0, 0)
        again(worker, GETS, into, into)
        are(into, value, 0, 0, 0)


generations = itertools.count(1)  # examples of one test share a ps
SHARDS = [
    *(ShardDefinition(vector(f"small{i}", 3 + i)) for i in range(6)),
    ShardDefinition(vector("none", 0, 4)),
    *(ShardDefinition(vector(f"large{i}", 9_000 + i)) for i in range(3)),
    *cut(VariableDefinition("table", (601, 30), F32), 2),
]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sets(st.integers(0, len(SHARDS) - 1), min_size=1)),
        st.tuples(
            st.sampled_from(["pull", "pull-other", "forget", "cut", "refused"]), st.just(set[int]())
        ),
    ),
    min_size=3,
    max_size=25,
)


@settings(
    deadline=None,
    max_examples=4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(actions=ACTIONS)
def test_a_puller_with_previous_values_always_equals_a_fresh_pull(
    ps: Ps, actions: list[tuple[str, set[int]]]
) -> None:
    """Connections are cut, steps refused, memory changed; shards share blocks, some are empty."""
    faults, gets, generation = faults_on(ps.kind), [get(s) for s in SHARDS], next(generations)
    reader, writer = ps.worker(0, generation, faults=faults), ps.worker(1, generation)
    for worker in (reader, writer):
        worker.peer.define(SHARDS, create=True)
    latest: list[Array] | None = None
    for name, chosen in [*actions, ("pull", set())]:
        if name == "push":
            writer.push(*(put(SHARDS[i], ADD, 1) for i in sorted(chosen)))
        elif name == "forget":
            latest = None
        elif name == "cut" and faults.streams:
            faults.stream.cut()
        elif name == "refused" and latest is not None:
            request = reader.request([put(SHARDS[0], APPLY, 1)], gets, has_previous=True)
            with pytest.raises(RefusedError, match="no update rule"):
                reader.exchange(request, latest, latest)
        elif name.startswith("pull"):
            into = latest if latest is not None and name == "pull" else rooms(gets)
            again(reader, gets, into, latest)
            latest = into
            for mine, theirs in zip(latest, writer.pull(*gets), strict=True):
                np.testing.assert_array_equal(mine, theirs)

    for peer in (reader.peer, writer.peer):
        peer.close()
