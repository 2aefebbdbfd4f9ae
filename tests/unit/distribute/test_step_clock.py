"""What strategies measure of a program's steps."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.sessions import Cluster, create, variable
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.step_times import StepClock, clock_here
from ropewalk.core.wire.steps import Operation
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended


class Hand:
    """A clock's hand that a test moves. Unit: milliseconds."""

    ms = 1

    def __call__(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def hand() -> Hand:
    return Hand()


def measured(clock: StepClock) -> dict[str, int]:
    """Milliseconds of each part."""
    return {part.name: round(part.seconds * 1e3) for part in clock.times().parts}


def slowed(peer: Any, hand: Hand, ms: int) -> None:
    """Have every exchange with a ps take a while."""
    step = peer.step

    def slow(*args: Any) -> Any:
        hand.ms += ms
        return step(*args)

    peer.step = slow


def strategy_with(hand: Hand, **options: Any) -> tuple[Any, StepClock]:
    strategy = rw.distribute.ParameterServerStrategy(**options)
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    clock = extended.runtime.progress.clock
    clock.__init__(hand)  # type: ignore[misc]
    return strategy, clock


def stepping(strategy: Any, hand: Hand, compute_ms: int) -> Callable[[], None]:
    with strategy.scope():
        w = rw.Variable(np.zeros(3, np.float32), name="w")
        optimizer = rw.optimizers.SGD(0.5)

    def compute() -> None:
        w.read_value()
        hand.ms += compute_ms
        optimizer.apply_gradients([(np.ones(3, np.float32), w)])

    return lambda: strategy.run(compute)


def test_a_step_with_servers_is_a_push_and_the_programs_time(hand: Hand) -> None:
    strategy, clock = strategy_with(hand)
    step = stepping(strategy, hand, 5)
    step()
    [peer] = strategy.extended.runtime.session.peers
    assert isinstance(peer, LocalPs)
    slowed(peer, hand, 2)
    for _ in range(4):
        step()
    assert measured(clock) == {"compute": 20, "push": 8, "step": 28}
    assert clock.times().count == 4


def test_reads_outside_of_steps_are_pulls(hand: Hand) -> None:
    strategy, clock = strategy_with(hand)
    step = stepping(strategy, hand, 5)
    step()
    slowed(strategy.extended.runtime.session.peers[0], hand, 2)
    [w] = strategy.extended.created.names
    strategy.extended._step.read_all([w], arrived=False)
    step()
    assert measured(clock) == {"compute": 5, "pull": 2, "push": 2, "step": 9}


def test_a_step_made_without_a_session_is_counted(hand: Hand) -> None:
    strategy, clock = strategy_with(hand)
    store = rw.training.ArrayStore({"w": np.zeros(3)}, rw.optimizers.SGD(0.5), strategy)
    for _ in range(4):
        hand.ms += 5
        store.exchange({"w": np.ones(3)})
    assert measured(clock) == {"compute": 15, "step": 15}


def test_the_push_after_a_mark_is_what_a_step_waits_for_a_checkpoint(hand: Hand) -> None:
    cluster = Cluster(2)
    session = cluster.session()
    create(session, variable("w", 3))
    clock = StepClock(hand)
    clock.step_ended()
    for peer in session.peers:
        slowed(peer, hand, 2)
    push = Step([Write(Operation.ASSIGN_ADD, {"w": np.ones(3, np.float32)})], increment=1)
    session.step(push)
    session.mark_cut(1)
    session.step(Step(reads=["w"]))
    session.step(push)
    session.step(push)
    clock.step_ended()
    times = clock.times()
    names = {part.name for part in times.parts}
    assert names == {"pull", "push", "checkpoint", "step"}
    assert times.mean("checkpoint") == times.mean("push") / 2 > 0


def reading(hand: Hand) -> Iterator[np.ndarray]:
    """Batches that take three milliseconds each."""
    while True:
        hand.ms += 3
        yield np.ones(4, np.float32)


@pytest.mark.parametrize("distributed", [False, True])
def test_a_batch_of_a_dataset_is_waited_for(hand: Hand, distributed: bool) -> None:
    strategy, clock = strategy_with(hand)
    step = stepping(strategy, hand, 5)
    dataset = rw.data.Dataset.from_generator(lambda: reading(hand))
    options = rw.distribute.InputOptions(experimental_per_replica_buffer_size=0)
    batches = iter(
        strategy.experimental_distribute_dataset(dataset.batch(1), options)
        if distributed
        else dataset
    )
    for _ in range(3):
        next(batches)
        step()
    assert measured(clock) == {"data": 6, "compute": 10, "step": 16}


def test_rows_are_pulled_and_rows_ahead_are_nobodys_wait(hand: Hand) -> None:
    strategy, clock = strategy_with(hand)
    step = stepping(strategy, hand, 5)
    with strategy.scope():
        table = rw.Variable(np.zeros((4, 2), np.float32), name="table")
    step()
    slowed(strategy.extended.runtime.session.peers[0], hand, 2)
    strategy.extended.read_rows(table, np.array([1, 3]))
    lookup = strategy.extended.tables.look_up_ahead
    ahead = threading.Thread(target=lookup, args=([(table, np.array([0]))],))
    ahead.start()
    ahead.join()
    step()
    assert measured(clock) == {"compute": 5 + 2, "pull": 2, "push": 2, "step": 11}


def test_steps_in_sync_are_counted_and_a_copy_for_the_job_is_what_a_checkpoint_costs(
    hand: Hand,
) -> None:
    strategy = rw.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w = rw.Variable(np.zeros(3, np.float32))
        optimizer = rw.optimizers.SGD(0.5)

    def compute() -> None:
        hand.ms += 5
        optimizer.apply_gradients([(np.ones(3, np.float32), w)])

    clock = strategy.extended.steps._step_clock  # type: ignore[attr-defined]
    clock.__init__(hand)
    for _ in range(4):
        strategy.run(compute)
    assert measured(clock) == {"compute": 15, "step": 15}
    assert clock_here() is clock
    assert rw.training.step_times() == clock.times()
