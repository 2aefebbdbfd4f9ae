"""A parameter session over every connection: steps under way, and programs that never repeat."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from helpers.ps_peers import ADD, APPLY, ASSIGN, CONNECTIONS, F32, SETTINGS, Ps, open_session
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import LimitExceededError, PeerLostError, RefusedError
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.wire.steps import WireFormat

SMALL, LARGE = 5, 100_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture(params=CONNECTIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[list[Ps]]:
    """Two ps that are reached over each connection."""
    made = [Ps(request.param, index) for index in range(2)]
    yield made
    for ps in made:
        ps.close()


def create(session: ParameterSession, **sizes: int) -> None:
    """Variables of zeros, each cut over both ps."""
    session.define(
        [VariableDefinition(name, (size,), F32) for name, size in sizes.items()],
        {name: np.zeros(size, np.float32) for name, size in sizes.items()},
        create=True,
        partitioner=FixedShardsPartitioner(2),
    )


def add(value: float, **sizes: int) -> list[Write]:
    return [Write(ADD, {name: np.full(size, value, np.float32) for name, size in sizes.items()})]


# -- steps under way ---------------------------------------------------------------------------


@SIZES
def test_a_read_after_begin_sees_its_push(cluster: list[Ps], size: int) -> None:
    session = open_session(*cluster)
    create(session, w=size)
    for expected in range(1, 6):
        session.begin(Step(add(1, w=size), increment=1))
        assert (session.step(Step(reads=["w"])).values["w"] == expected).all()
        session.begin(Step(add(0, w=size)))
        np.testing.assert_array_equal(session.rows.lookup("w", np.array([size - 1])), [expected])
        assert session.global_step == expected


@SIZES
def test_a_step_is_finished_by_whatever_comes_next(cluster: list[Ps], size: int) -> None:
    session = open_session(*cluster)
    create(session, w=size)
    nexts: list[Callable[[], object]] = [
        lambda: session.begin(Step(add(0, w=size))),
        session.wait,
        session.finish,
        lambda: session.bind(["w"], SGD(learning_rate=1.0)),
        lambda: session.rows.lookup("w", np.array([0])),
        lambda: create(session, w=size),
        lambda: setattr(session, "wire_format", WireFormat()),
    ]
    for expected, call in enumerate(nexts, 1):
        pending = session.begin(Step(add(1, w=size), ["w"], increment=1))
        call()
        assert pending.answer is not None
        result = pending.result()
        assert result is pending.result()
        assert result.global_step == expected
        assert (result.values["w"] == expected).all()


@SIZES
def test_many_steps_under_way_one_after_another_keep_their_order(
    cluster: list[Ps], size: int
) -> None:
    session = open_session(*cluster)
    create(session, w=size)
    seen = []
    pending = None
    for value in range(30):
        following = session.begin(
            Step(
                [Write(ASSIGN if value % 3 else ADD, {"w": np.full(size, value, np.float32)})],
                ["w"],
            )
        )
        if pending is not None:
            seen.append(float(pending.result().values["w"][-1]))
        pending = following
    expected, now = [], 0.0
    for value in range(29):
        now = value if value % 3 else now + value
        expected.append(now)
    assert seen == expected


@SIZES
def test_the_answer_may_be_waited_for_in_another_thread(cluster: list[Ps], size: int) -> None:
    session = open_session(*cluster)
    create(session, w=size)
    for expected in range(1, 20):
        pending = session.begin(Step(add(1, w=size), ["w"], detached=True))
        thread = threading.Thread(target=pending.wait)
        thread.start()
        assert (pending.result().values["w"] == expected).all()
        thread.join(10)
        assert not thread.is_alive()


@SIZES
@pytest.mark.parametrize("form", ["plain", "other-dtype", "strided", "rows"])
def test_what_a_detached_push_was_made_of_may_change_at_once(
    cluster: list[Ps], size: int, form: str
) -> None:
    session = open_session(*cluster)
    create(session, w=size, b=3)
    expected = np.zeros(size, np.float32)
    rng = np.random.default_rng(0)
    reused = np.empty(size, np.float64 if form == "other-dtype" else np.float32)
    wide = np.empty(2 * size, np.float32)
    bias = np.empty(3, np.float32)
    rows = np.arange(size)
    for _ in range(4):
        values = rng.integers(0, 100, size)
        expected += values.astype(np.float32)
        value: Array | IndexedSlices = reused
        if form == "strided":
            value = wide[::2]
        reused[:] = wide[::2] = values
        bias[:] = 1
        if form == "rows":
            value = IndexedSlices(reused, rows)
        pending = session.begin(Step([Write(ADD, {"w": value, "b": bias})], detached=True))
        reused[:] = wide[:] = bias[:] = -1000
        rows[:] = 0
        pending.result()
        rows[:] = np.arange(size)
    got = session.step(Step(reads=["w", "b"])).values
    np.testing.assert_array_equal(got["w"], expected)
    np.testing.assert_array_equal(got["b"], 4)


def refused() -> list[Write]:
    """Gradients for a variable that has no update rule."""
    return [Write(APPLY, {"w": np.ones(SMALL, np.float32)})]


def test_a_failed_step_is_reported_by_its_result_and_then_no_more(cluster: list[Ps]) -> None:
    session = open_session(*cluster)
    create(session, w=SMALL)
    pending = session.begin(Step(refused(), ["w"], increment=1))
    with pytest.raises(RefusedError, match="'w' has no update rule") as caught:
        pending.result()
    session.finish()
    with pytest.raises(RefusedError) as again:
        pending.result()
    assert again.value is caught.value
    session.finish()
    assert (session.step(Step(add(1, w=SMALL), ["w"])).values["w"] == 1).all()


def test_a_failed_step_nobody_asked_about_is_reported_at_the_end_once(cluster: list[Ps]) -> None:
    session = open_session(*cluster)
    create(session, w=SMALL)
    session.begin(Step(refused(), increment=1))
    # The next one is not to blame.
    assert (session.step(Step(add(1, w=SMALL), ["w"])).values["w"] == 1).all()
    with pytest.raises(RefusedError, match="'w' has no update rule"):
        session.finish()
    session.finish()


def test_a_refused_step_leaves_no_gap_and_its_values_are_not_taken_for_pulled(
    cluster: list[Ps],
) -> None:
    session = open_session(*cluster)
    create(session, w=SMALL, big=LARGE)
    names = ["w", "big"]
    for expected in range(1, 6):
        pending = session.begin(Step(refused(), names))
        session.wait()
        assert pending.failure is not None
        values = session.step(Step(add(1, w=SMALL, big=LARGE), names)).values
        assert (values["w"] == expected).all()
        assert (values["big"] == expected).all()


def test_a_step_that_cannot_be_sent_is_reported_at_begin(cluster: list[Ps]) -> None:
    session = open_session(*cluster)
    create(session, w=SMALL)
    size = SETTINGS.max_step_bytes // 4 + 1
    huge = VariableDefinition("huge", (size,), F32)
    with pytest.raises(LimitExceededError, match="max_step_bytes"):
        session.define([huge], {"huge": np.zeros(size, F32)}, create=True)
    session.finish()
    assert (session.step(Step(add(1, w=SMALL), ["w"])).values["w"] == 1).all()


def test_an_abort_is_heard_by_the_step_under_way_and_by_those_after(cluster: list[Ps]) -> None:
    session = open_session(*cluster)
    create(session, w=SMALL)
    pending = session.begin(Step(add(1, w=SMALL)))
    error = PeerLostError("the chief is lost")
    session.abort(error)
    calls: list[Callable[[], object]] = [
        pending.result,
        pending.result,
        lambda: session.begin(Step(add(1, w=SMALL))),
        lambda: session.step(Step(reads=["w"])),
        lambda: session.rows.lookup("w", np.array([0])),
        lambda: session.bind(["w"], SGD()),
        lambda: create(session, another=SMALL),
    ]
    for call in calls:
        with pytest.raises(PeerLostError) as caught:
            call()
        assert caught.value is error


def test_finish_without_a_step_is_fine(cluster: list[Ps]) -> None:
    session = open_session(*cluster)
    session.finish()
    create(session, w=SMALL)
    session.finish()
    session.wait()


# -- programs that never do the same thing twice -----------------------------------------------


# More than plans are kept: 144 of pulls and pushes, after which a layout is dropped with each step.
@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_other_variables_in_every_step_for_hundreds_of_steps(cluster: list[Ps], steps: int) -> None:
    """Numbers of dropped layouts are used again; none is taken for what it was before."""
    session = open_session(*cluster)
    names = [f"v{i}" for i in range(14)]
    sizes = dict.fromkeys(names, 4)
    session.define(
        [VariableDefinition(name, (4,), F32) for name in names],
        {name: np.zeros(4, np.float32) for name in names},
        create=True,
    )
    expected = dict.fromkeys(names, 0.0)
    rng = np.random.default_rng(0)
    for step in range(steps):
        # A bit pattern each: no set comes twice in a row of 2**14.
        mine = [name for i, name in enumerate(names) if (step * 2654435761 >> 7) >> i & 1] or names
        theirs = [name for name in names if name not in mine] or names
        push = add(1, **{name: sizes[name] for name in theirs}) if step % 3 == 0 else []
        if push:
            for name in theirs:
                expected[name] += 1
        values = session.step(Step(push, mine)).values
        probe = mine[int(rng.integers(len(mine)))]
        assert values[probe][0] == values[probe][-1] == expected[probe]
    final = session.step(Step(reads=names)).values
    assert {name: float(final[name][0]) for name in names} == expected


def test_other_large_pulls_in_every_step_take_nothing_for_known_that_is_not(
    cluster: list[Ps],
) -> None:
    """More sets than are kept, so that their layouts' numbers come to stand for others."""
    session = open_session(*cluster)
    names = [f"v{i}" for i in range(6)]
    sizes = {name: 6000 + 1000 * i for i, name in enumerate(names)}
    create(session, **sizes)
    expected = dict.fromkeys(names, 0)
    rng = np.random.default_rng(1)
    for _ in range(150):
        mine = [str(name) for name in rng.permutation(names)[: rng.integers(4, 7)]]
        one = str(rng.choice(names))
        expected[one] += 1
        values = session.step(Step(add(1, **{one: sizes[one]}), mine)).values
        for name in mine:
            assert (values[name] == expected[name]).all()
