"""Steps of ParameterServerStrategy in one process: one pull, one push, a counted step."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.errors import ConfigurationError, DefinitionMismatchError, JobStoppedError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.distribute import ParameterServerStrategy, partitioners
from ropewalk.distribute.cluster_resolver import SimpleClusterResolver
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.runtime import ClusterRuntime, JobLink
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended
from ropewalk.server.ps.store import Store


def runtime_of(strategy: ParameterServerStrategy) -> ClusterRuntime:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended.runtime


def store_of(strategy: ParameterServerStrategy) -> Store:
    [transport] = runtime_of(strategy).session.peers
    assert isinstance(transport, LocalPs)
    return transport.store


def pushes(strategy: ParameterServerStrategy) -> int:
    return store_of(strategy).counters().pushes


def pulls(strategy: ParameterServerStrategy) -> int:
    return store_of(strategy).counters().pulls


def make(
    *values: Any, partitioner: partitioners.FixedShardsPartitioner | None = None
) -> tuple[ParameterServerStrategy, list[rw.Variable]]:
    strategy = ParameterServerStrategy(variable_partitioner=partitioner)
    with strategy.scope():
        names = "abcdefgh"
        variables = [rw.Variable(value, name=names[i]) for i, value in enumerate(values)]
    return strategy, variables


class OtherWorker:
    """Another worker of the same ps."""

    def __init__(self, strategy: ParameterServerStrategy, *variables: rw.Variable) -> None:
        who = Incarnation(TaskId("worker", 1), 1)
        transport = LocalPs(TaskId("ps", 0), who, Settings(), store_of(strategy))
        self.session = ParameterSession([transport], who, Settings())
        self.session.define([v._spec.definition(v.name) for v in variables], {}, create=False)

    def assign(self, variable: rw.Variable, value: Any) -> None:
        self.session.step(
            Step([Write(Operation.ASSIGN, {variable.name: np.asarray(value, variable.dtype)})])
        )


SGD = rw.optimizers.SGD


# -- reading -----------------------------------------------------------------------------------


def test_reads_in_a_step_are_of_its_pull_whatever_others_and_the_step_itself_push() -> None:
    strategy, [w] = make([1.0])
    other = OtherWorker(strategy, w)
    optimizer = SGD(1.0)

    def step() -> list[float]:
        seen = [float(w[0])]
        other.assign(w, [10.0])
        seen.append(float(w[0]))
        optimizer.apply_gradients([([2.0], w)])
        seen.append(float(w[0]))
        return seen

    assert strategy.run(step) == [1, 1, 1]
    assert w.read_value()[0] == 8, "the other's value, and then our gradient"


def test_outside_a_step_reads_are_of_now() -> None:
    strategy, [w] = make([1.0])
    other = OtherWorker(strategy, w)
    strategy.run(w.read_value)
    other.assign(w, [5.0])
    assert w.read_value()[0] == 5


def test_a_step_pulls_only_once_and_later_steps_with_their_push() -> None:
    strategy, [a, b] = make([1.0], [2.0])
    optimizer = SGD(1.0)

    def step() -> None:
        optimizer.apply_gradients([(a * 0, a), (b.read_value() * 0, b)])
        a.read_value()

    strategy.run(step)
    before = pulls(strategy)
    for _ in range(5):
        strategy.run(step)
    assert pulls(strategy) - before == 5
    assert pushes(strategy) == 1 + 6  # the initial values, then one per step


def test_a_variable_first_read_in_a_later_step_is_pulled_then() -> None:
    big = np.ones(40_000, np.float32)  # too large to come along unasked
    strategy, [a, b] = make([1.0], big)
    strategy.run(a.read_value)
    b.assign(big * 3)
    assert strategy.run(lambda: (a[0], b[0])) == (1, 3)


def test_run_without_reads_or_gradients_asks_nobody() -> None:
    strategy, [_] = make([1.0])
    before = pulls(strategy), pushes(strategy)
    assert strategy.run(lambda x: x + 1, args=(1,)) == 2
    assert (pulls(strategy), pushes(strategy)) == before


# -- pushing -----------------------------------------------------------------------------------


def test_gradients_are_pushed_once_at_the_end_of_the_step() -> None:
    strategy, [a, b] = make([1.0], [2.0])
    optimizer = SGD(1.0)
    before = pushes(strategy)

    def step() -> int:
        optimizer.apply_gradients([([1.0], a)])
        optimizer.apply_gradients([([1.0], b)])
        return pushes(strategy)

    assert strategy.run(step) == before
    assert pushes(strategy) == before + 1
    assert (a[0], b[0]) == (0, 1)


def test_outside_a_step_gradients_are_pushed_at_once() -> None:
    strategy, [a] = make([1.0])
    SGD(1.0).apply_gradients([([1.0], a)])
    assert a[0] == 0
    assert strategy.global_step == 1


def test_a_step_that_raises_pushes_nothing_and_the_next_one_is_clean() -> None:
    strategy, [a] = make([1.0])
    optimizer = SGD(1.0)
    before = pushes(strategy)

    def broken() -> None:
        optimizer.apply_gradients([([1.0], a)])
        raise KeyError("mine")

    with pytest.raises(KeyError):
        strategy.run(broken)
    assert pushes(strategy) == before
    strategy.run(lambda: optimizer.apply_gradients([([0.25], a)]))
    assert a[0] == 0.75
    assert strategy.global_step == 1


def test_an_assignment_in_a_step_is_seen_at_once_by_it_and_by_others() -> None:
    strategy, [a, b] = make([1.0], [2.0])
    other = OtherWorker(strategy, a, b)

    def step() -> tuple[float, float, float]:
        before = float(a[0])
        a.assign([7.0])
        a.assign_add([1.0])
        return before, float(a[0]), float(other.session.step(Step(reads=["a"])).values["a"][0])

    assert strategy.run(step) == (1, 8, 8)
    assert a[0] == 8


def test_an_assignment_between_steps_is_seen_by_the_next() -> None:
    strategy, [a] = make([1.0])
    optimizer = SGD(1.0)

    def step() -> float:
        value = float(a[0])
        optimizer.apply_gradients([([1.0], a)])
        return value

    strategy.run(step)
    a.assign([50.0])
    assert strategy.run(step) == 50


def test_two_updates_of_one_variable_in_a_step_both_count() -> None:
    strategy, [a] = make([10.0])
    optimizer = SGD(1.0)

    def step() -> list[float]:
        seen = [float(a[0])]
        for _ in range(3):
            optimizer.apply_gradients([([1.0], a)])
            seen.append(float(a[0]))
        return seen

    assert strategy.run(step) == [10] * 4, "reads stay those of the step's pull"
    assert a[0] == 7
    assert strategy.global_step == 1


def test_one_variable_twice_in_one_call_counts_twice() -> None:
    """As under the default strategy; nothing is dropped in silence."""
    strategy, [a] = make([10.0])
    mine = rw.Variable([10.0])
    SGD(1.0).apply_gradients([([1.0], mine), ([2.0], mine)])
    strategy.run(lambda: SGD(1.0).apply_gradients([([1.0], a), ([2.0], a)]))
    SGD(1.0).apply_gradients([([1.0], a), ([2.0], a)])
    assert mine[0] == 7
    assert a[0] == 4
    assert strategy.global_step == 2


def test_two_optimizers_in_one_step_each_update_theirs() -> None:
    strategy, [a, b] = make([1.0], [1.0])
    slow, adam = SGD(0.5), rw.optimizers.Adam(0.5)

    def step() -> None:
        slow.apply_gradients([([1.0], a)])
        adam.apply_gradients([([1.0], b)])

    before = pushes(strategy)
    strategy.run(step)
    assert a[0] == 0.5
    assert b[0] == pytest.approx(0.5, abs=1e-5)  # Adam's first step is lr, but for epsilon
    assert pushes(strategy) == before + 1
    assert strategy.global_step == 1


def test_two_optimizers_of_different_rules_on_one_variable_are_refused() -> None:
    _, [a] = make([1.0])
    SGD(0.5).apply_gradients([([1.0], a)])
    with pytest.raises(DefinitionMismatchError, match=r"'a'.*Adam"):
        rw.optimizers.Adam(0.5).apply_gradients([([1.0], a)])
    SGD(0.5).apply_gradients([([1.0], a)])  # an equal rule is the same rule
    assert a[0] == 0


def test_none_gradients_are_left_out_and_all_none_is_an_error() -> None:
    strategy, [a, b] = make([1.0], [1.0])
    SGD(1.0).apply_gradients([(None, a), ([1.0], b)])
    assert (a[0], b[0]) == (1, 0)
    for pairs in ([(None, a), (None, b)], []):
        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            SGD(1.0).apply_gradients(pairs)
    assert strategy.global_step == 1


def test_a_variable_of_another_strategy_is_refused_by_name() -> None:
    strategy, [a] = make([1.0])
    _, [theirs] = make([1.0])
    with pytest.raises(ValueError, match="'a' was created outside this strategy's scope"):
        strategy.run(lambda: SGD().apply_gradients([([1.0], a), ([1.0], theirs)]))
    mine = rw.Variable([1.0], name="mine")
    with pytest.raises(ValueError, match="'mine' was created outside this strategy's scope"):
        SGD().apply_gradients([([1.0], a), ([1.0], mine)])
    assert a[0] == 1


# -- counting ----------------------------------------------------------------------------------


def test_the_global_step_counts_steps_not_pushes() -> None:
    strategy, [a, b] = make([1.0], [1.0])
    clipped = SGD(0.1, global_clipnorm=1.0)
    plain = SGD(0.1)

    def step() -> None:
        plain.apply_gradients([([1.0], a)])
        clipped.apply_gradients([([1.0], b)])  # another clip: a push of its own

    before = pushes(strategy)
    for expected in (1, 2, 3):
        strategy.run(step)
        assert strategy.global_step == expected
    assert pushes(strategy) == before + 6
    strategy.run(a.read_value)  # changes nothing
    assert runtime_of(strategy).progress.steps == strategy.global_step == 3


def test_steps_that_are_parts_of_one_count_as_one() -> None:
    strategy, [a, b] = make([1.0], [1.0])
    one, other = SGD(0.1), SGD(0.1)
    for expected in (1, 2, 3):
        with strategy.extended.as_one_step():
            strategy.run(lambda: one.apply_gradients([([1.0], a)]))
            one.apply_gradients([([1.0], a)])
            other.apply_gradients([([1.0], b)])
            strategy.extended.apply_and_read([(other, [([1.0], b)])], [a, b])
        assert strategy.global_step == runtime_of(strategy).progress.steps == expected
    one.apply_gradients([([1.0], a)])
    assert strategy.global_step == 4
    assert np.allclose([a[0], b[0]], [1 - 0.7, 1 - 0.6])


def test_a_push_of_its_own_does_not_change_what_the_step_reads() -> None:
    strategy, [a, b] = make([1.0], [1.0])
    plain, clipped = SGD(1.0), SGD(1.0, global_clipnorm=100.0)

    def step() -> list[float]:
        seen = [float(a[0])]
        plain.apply_gradients([([1.0], a)])
        clipped.apply_gradients([([1.0], b)])
        seen.append(float(a[0]))
        return seen

    assert strategy.run(step) == [1, 1]
    assert (a[0], b[0]) == (0, 0)


def test_staleness_is_the_steps_of_others_between_pull_and_push() -> None:
    strategy, [a] = make([1.0])
    other = OtherWorker(strategy, a)
    optimizer = SGD(1.0)
    progress = runtime_of(strategy).progress

    def step(others: int) -> None:
        gradient = a.read_value()
        for _ in range(others):
            other.session.step(Step([Write(Operation.APPLY, {"a": gradient})], increment=1))
        optimizer.apply_gradients([(gradient, a)])

    for others in (0, 3, 0, 1):
        strategy.run(step, args=(others,))
    assert list(progress.staleness) == [0, 3, 0, 1]
    assert progress.steps == progress.pushes == 4


# -- where it runs -----------------------------------------------------------------------------


def test_without_a_cluster_one_process_is_all_of_it() -> None:
    strategy = ParameterServerStrategy()
    assert strategy.is_chief
    assert strategy.task_index == 0
    assert strategy.num_replicas_in_sync == 1
    assert not strategy.cluster_resolver.cluster_spec()
    assert strategy.global_step == 0
    assert strategy.extended.parameter_devices == ("/job:ps/replica:0/task:0/device:CPU:0",)
    assert strategy.extended.worker_devices == ("/job:localhost/replica:0/task:0/device:CPU:0",)


def test_a_resolver_must_name_the_task_the_process_runs_as() -> None:
    runtime = runtime_of(ParameterServerStrategy())
    spec = rw.ClusterSpec({"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]})
    same = SimpleClusterResolver(spec, task_type="chief", task_id=0)
    assert ParameterServerStrategy(same, runtime=runtime).cluster_resolver is same
    other = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with pytest.raises(ValueError, match=r"says this is worker:0, .* runs as chief:0"):
        ParameterServerStrategy(other, runtime=runtime)


@pytest.mark.parametrize(
    ("ps", "another"),
    [
        pytest.param(["h:3"], False, id="the same"),
        pytest.param(["h:3", "h:4"], False, id="one more ps"),
        pytest.param(["10.0.0.7:3"], False, id="an address that the name may stand for"),
        pytest.param(["other:3"], True, id="another host"),
        pytest.param(["h:4"], True, id="another port"),
    ],
)
def test_a_resolver_must_name_the_cluster_the_process_is_in(ps: list[str], another: bool) -> None:
    joined = {"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]}
    local = runtime_of(ParameterServerStrategy())
    runtime = replace(local, task=replace(local.task, spec=rw.ClusterSpec(joined)))
    resolver = SimpleClusterResolver(rw.ClusterSpec({**joined, "ps": ps}), "", "chief", 0)
    if not another:
        assert ParameterServerStrategy(resolver, runtime=runtime).cluster_resolver is resolver
        return
    message = rf"another cluster: ps:0 is at {ps[0]} there and at h:3 in the cluster"
    with pytest.raises(ValueError, match=message):
        ParameterServerStrategy(resolver, runtime=runtime)


def test_an_evaluator_has_no_parameter_servers_and_is_told_what_it_has() -> None:
    task = replace(runtime_of(ParameterServerStrategy()).task, task=TaskId("evaluator", 0))
    strategy = ParameterServerStrategy(runtime=ClusterRuntime(task, Settings()))
    with pytest.raises(ConfigurationError, match="SidecarEvaluator"), strategy.scope():
        rw.Variable([1.0])


def test_a_cluster_without_ps_is_told_what_to_use_instead() -> None:
    task = runtime_of(ParameterServerStrategy()).task
    with pytest.raises(ConfigurationError, match=r"has no ps.*MultiWorkerMirroredStrategy"):
        ParameterServerStrategy(runtime=ClusterRuntime(task, Settings()))


def test_a_job_that_is_asked_to_stop_ends_the_program_at_its_next_step() -> None:
    class Stopping(JobLink):
        def check(self) -> None:
            raise JobStoppedError("stopping")

    alone = runtime_of(ParameterServerStrategy())
    strategy = ParameterServerStrategy(runtime=replace(alone, job=Stopping()))
    with pytest.raises(JobStoppedError, match="stopping"):
        strategy.run(pytest.fail, args=("the step ran",))


def test_restored_variables_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = replace(runtime_of(ParameterServerStrategy()), restore_from="somewhere")
    strategy = ParameterServerStrategy(runtime=runtime)
    define = runtime.session.define
    given: list[str] = []

    def restored(*args: Any, restore_from: str, **kwargs: Any) -> list[str]:
        given.append(restore_from)
        define(*args, **kwargs)
        return ["w"]

    monkeypatch.setattr(runtime.session, "define", restored)
    with caplog.at_level(logging.INFO), strategy.scope():
        rw.Variable([1.0], name="w")
    assert given == ["somewhere"]
    assert "restored 1 variable from somewhere" in caplog.text
