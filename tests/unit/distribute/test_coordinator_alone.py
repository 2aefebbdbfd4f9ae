"""A coordinator without a cluster: closures run in a thread of the program's process."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from ropewalk.client.closure_link import Frame, Knowledge
from ropewalk.cluster.job.closure_queue import ClosureQueue
from ropewalk.core.task import TaskId
from ropewalk.distribute.coordinator.closure_runner import ClosureRunner
from ropewalk.distribute.coordinator.sent_once import SentOnce
from ropewalk.proto.v1 import session_pb2


@pytest.fixture
def strategy() -> rw.distribute.ParameterServerStrategy:
    return rw.distribute.ParameterServerStrategy()


@pytest.fixture
def coordinator(
    strategy: rw.distribute.ParameterServerStrategy,
) -> Iterator[rw.distribute.coordinator.ClusterCoordinator]:
    made = rw.distribute.coordinator.ClusterCoordinator(strategy)
    yield made
    made.close()


def kinds(frames: list[Frame]) -> list[str]:
    return [str(message.WhichOneof("kind")) for message, _ in frames]


def test_closures_train_here(
    strategy: rw.distribute.ParameterServerStrategy,
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    with strategy.scope():
        total = rw.Variable(np.zeros(2, np.float32), name="total")
    for _ in range(20):
        coordinator.schedule(lambda: total.assign_add(np.ones(2, np.float32)))
    coordinator.join()
    assert total.numpy().tolist() == [20, 20]


@pytest.mark.parametrize("args", [np.float32(0), np.zeros(1), np.ones(2), "xy", {"a": 1}], ids=repr)
def test_arguments_that_are_no_tuple_are_an_error_that_says_what_to_write(
    coordinator: rw.distribute.coordinator.ClusterCoordinator, args: Any
) -> None:
    with pytest.raises(TypeError, match=r"list or tuple, got \w+: write args=\(value,\)"):
        coordinator.schedule(lambda *_: None, args=args)


def test_alone_the_replicas_in_sync_are_those_of_this_process() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.ParameterServerStrategy()
    finally:
        rw.config.set_logical_cpu_devices(1)
    assert strategy.num_replicas_in_sync == 2
    coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)
    assert strategy.num_replicas_in_sync == 2
    assert coordinator.schedule(lambda: strategy.num_replicas_in_sync).fetch() == 2
    coordinator.close()


def test_one_that_does_not_end_is_over_at_its_deadline_and_others_go_on(
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    late = coordinator.schedule(_wait_for_ever, deadline_s=0.2)
    with pytest.raises(rw.errors.DeadlineExceededError, match=r"deadline_s=0\.2"):
        coordinator.join()
    with pytest.raises(rw.errors.DeadlineExceededError):
        late.fetch()
    assert coordinator.schedule(abs, (-1,), deadline_s=60).fetch(timeout_s=60) == 1


def test_a_thread_of_closures_that_breaks_is_replaced_and_its_closures_run(
    coordinator: rw.distribute.coordinator.ClusterCoordinator, calls: Calls
) -> None:
    calls.fail(ClosureRunner, "handle", SystemExit(1), KeyError("a bug"))
    assert coordinator.schedule(abs, (-1,)).fetch(timeout_s=60) == 1


def test_a_closure_that_breaks_every_thread_is_given_up(
    coordinator: rw.distribute.coordinator.ClusterCoordinator, calls: Calls
) -> None:
    calls.fail(ClosureRunner, "handle", KeyError("a bug"))
    with pytest.raises(rw.errors.ClosureError, match="was given up"):
        coordinator.schedule(abs, (-1,)).fetch(timeout_s=60)


def test_a_closure_that_cannot_be_sent_is_given_up(
    coordinator: rw.distribute.coordinator.ClusterCoordinator, calls: Calls
) -> None:
    calls.fail(SentOnce, "frames", ValueError("the message is too large"))
    with pytest.raises(rw.errors.ClosureError, match="was given up"):
        coordinator.schedule(abs, (-1,)).fetch(timeout_s=60)


def test_whoever_waits_hears_that_deadlines_count_no_more(
    coordinator: rw.distribute.coordinator.ClusterCoordinator, calls: Calls
) -> None:
    calls.fail(ClosureQueue, "tick", KeyError("a bug"))
    late = coordinator.schedule(_wait_for_ever, deadline_s=60)
    with pytest.raises(rw.errors.RopewalkError, match="no deadline counts any more: KeyError"):
        late.fetch(timeout_s=60)
    with pytest.raises(rw.errors.RopewalkError, match="no deadline counts any more"):
        coordinator.join()


def test_an_answer_to_nothing_is_refused(
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    dispatcher = coordinator._dispatcher
    for answer in (
        session_pb2.ClosureAnswer(id=7),
        session_pb2.ClosureAnswer(id=7, failure=session_pb2.ClosureFailure(type="ValueError")),
    ):
        with pytest.raises(rw.errors.RefusedError, match="closure 7 without an attempt"):
            dispatcher.answered(TaskId("worker", 0), answer, [])
    dispatcher.answered(
        TaskId("worker", 0), session_pb2.ClosureAnswer(id=7, attempt=3, structure=b"1"), []
    )
    assert coordinator.schedule(abs, (-1,)).fetch(timeout_s=60) == 1


def _wait_for_ever() -> None:
    threading.Event().wait(30)


def test_options_are_given_where_the_coordinator_is_made_first(
    strategy: rw.distribute.ParameterServerStrategy,
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    with pytest.raises(ValueError, match="has a coordinator already"):
        rw.distribute.coordinator.ClusterCoordinator(strategy, deadline_s=3)
    assert rw.distribute.coordinator.ClusterCoordinator(strategy) is coordinator
    with pytest.raises(ValueError, match="no positive number of seconds"):
        coordinator.schedule(abs, (1,), deadline_s=0)


def test_a_function_that_is_gone_is_forgotten_when_no_closure_needs_it(
    strategy: rw.distribute.ParameterServerStrategy,
) -> None:
    told, known = SentOnce(strategy), Knowledge()

    def first() -> None: ...

    number = told.use(first)
    assert kinds(told.frames(known, number, ())) == ["define_function"]
    assert kinds(told.frames(known, number, ())) == []
    del first
    gc.collect()
    other = told.use(len)
    assert kinds(told.frames(known, other, ())) == ["define_function"]  # its closure waits
    told.release(number)
    (message, _), *rest = told.frames(known, other, ())
    assert list(message.forget.ids) == [number]
    assert not rest


def test_a_closure_that_is_over_before_it_is_sent_does_no_harm(
    strategy: rw.distribute.ParameterServerStrategy,
) -> None:
    told = SentOnce(strategy)
    number = told.use(lambda: None)
    gc.collect()
    told.release(number)
    assert kinds(told.frames(Knowledge(), number, ())) == []


def test_functions_that_the_program_keeps_are_bounded(
    strategy: rw.distribute.ParameterServerStrategy,
) -> None:
    told, known = SentOnce(strategy, max_functions=3), Knowledge()
    functions = [eval(f"lambda: {number}") for number in range(6)]  # noqa: S307
    numbers = []
    for function in functions:
        numbers.append(told.use(function))
        told.frames(known, numbers[-1], ())
        told.release(numbers[-1])
    assert told.use(functions[5]) == numbers[5]
    assert told.use(functions[0]) not in numbers, "the one scheduled least recently is sent anew"
    told.frames(known, numbers[5], ())
    assert len(known.things) <= 3


def test_a_value_of_workers_is_forgotten_with_what_made_it(
    strategy: rw.distribute.ParameterServerStrategy,
) -> None:
    told, known = SentOnce(strategy), Knowledge()
    iterator = iter(told.add_dataset(lambda: range(3)))
    number = told.use(len)
    first = told.frames(known, number, ())
    assert kinds(first) == [
        "define_function", "make_resource", "make_resource", "define_function",
    ]  # fmt: skip
    del iterator
    gc.collect()
    (message, _), *rest = told.frames(known, number, ())
    assert len(message.forget.ids) == 3
    assert not rest
    assert known.things == {number}


def test_an_optimizer_s_state_is_sent_when_it_changes_and_not_before(
    strategy: rw.distribute.ParameterServerStrategy,
) -> None:
    told, known = SentOnce(strategy), Knowledge()
    with strategy.scope():
        optimizer = rw.optimizers.SGD(0.1)

    def uses() -> float:
        return optimizer.learning_rate

    def also_uses() -> float:
        return optimizer.learning_rate

    one, other = told.use(uses), told.use(also_uses)

    def sent(number: int) -> list[str]:
        return kinds(told.frames(known, number, told.states(number, None)))

    assert sent(one) == ["define_function"]
    optimizer.learning_rate = 0.2
    assert sent(one) == ["change_optimizer"]
    assert sent(one) == []
    assert sent(other) == ["define_function"]
    waiting = told.states(one, None)
    optimizer.learning_rate = 0.1
    assert sent(one) == ["change_optimizer"]
    # A closure that was scheduled before has the rate of then.
    assert kinds(told.frames(known, one, waiting)) == ["change_optimizer"]


def test_a_dataset_may_be_given_and_what_can_be_gone_through_once_not(
    strategy: rw.distribute.ParameterServerStrategy,
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    data = rw.data.Dataset.from_tensor_slices(np.arange(4)).repeat().batch(4)
    for given in (data, lambda: data, strategy.experimental_distribute_dataset(data)):
        iterator = iter(coordinator.create_per_worker_dataset(given))
        drawn = coordinator.schedule(next, (iterator,)).fetch(timeout_s=60)
        assert drawn.tolist() == [0, 1, 2, 3]
    for once in (iter([1]), (n for n in [1]), rw.data.as_dataset(n for n in [1])):
        with pytest.raises(TypeError, match=r"gone through once.* give a function that makes it"):
            coordinator.create_per_worker_dataset(once)


def test_what_a_dataset_of_each_worker_holds_is_known_here(
    strategy: rw.distribute.ParameterServerStrategy,
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    data = rw.data.Dataset.range(5).batch(2)
    sources: list[Any] = [
        data,
        lambda: data,
        lambda: [np.arange(2), np.arange(1)],
        lambda: strategy.experimental_distribute_dataset(data),
    ]
    for source in sources:
        per_worker = coordinator.create_per_worker_dataset(source)
        for each in (per_worker, iter(per_worker)):
            assert each.element_spec.shape == (None,)
            assert each.element_spec.dtype == np.int64


def test_a_dataset_function_that_creates_a_variable_is_refused(
    strategy: rw.distribute.ParameterServerStrategy,
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    def dataset_fn() -> list[int]:
        with strategy.scope():
            rw.Variable(1.0, name="inside")
        return [1]

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    message = r"Creating variables in `dataset_fn` is not allowed, and it creates inside"
    coordinator.schedule(next, (iterator,))
    with pytest.raises(ValueError, match=message):
        coordinator.join()
    with strategy.scope():
        assert rw.Variable(1.0, name="inside").name == "inside"


def test_what_cannot_be_sent_is_named(
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    lock = threading.Lock()

    def uses_a_lock() -> None:
        lock.acquire()

    with pytest.raises(TypeError, match=r"cannot be sent .*uses_a_lock.*cannot pickle '_thread.lo"):
        coordinator.schedule(uses_a_lock)


def test_a_dataset_of_each_worker_is_a_function_or_a_dataset(
    coordinator: rw.distribute.coordinator.ClusterCoordinator,
) -> None:
    with pytest.raises(ValueError, match="a function that makes a dataset"):
        coordinator.create_per_worker_dataset(3)
