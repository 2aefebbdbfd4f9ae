"""PyTorch: what a program does to parameters and optimizers between steps is kept, or refused."""

import collections
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.bridges

Change = Callable[[Any, int], None]


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 0.01)


def train(module: Any, optimizer: Any, steps: int, change: Change | None = None) -> None:
    x = torch.linspace(-1, 1, 64).reshape(16, 4)
    for step in range(steps):
        optimizer.zero_grad()
        (module(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
        optimizer.step()
        if change is not None:
            change(module, step)


def clamp(module: Any, step: int) -> None:
    for parameter in module.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def load(module: Any, step: int) -> None:
    if step == 10:
        module.load_state_dict({key: value / 2 for key, value in module.state_dict().items()})


def replace(module: Any, step: int) -> None:
    if step == 10:
        for parameter in module.parameters():
            parameter.data = parameter.data / 2


def values(module: Any) -> list[Any]:
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]


def assert_trained_as_alone(found: list[Any], steps: int, change: Change) -> None:
    """Without a strategy the same steps and changes give these values."""
    alone = net()
    train(alone, adam(alone.parameters()), steps, change)
    for mine, theirs in zip(found, values(alone), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [clamp, load, replace])
def test_what_a_program_does_to_parameters_counts_under_servers(change: Change) -> None:
    def program() -> list[Any]:
        module = net()
        optimizer = rw.training.torch.DistributedOptimizer(
            adam(module.parameters()), rw.distribute.ParameterServerStrategy(), module=module
        )
        train(module, optimizer, 30, change)
        return values(module)

    with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
        found = next(iter(cluster.run(program).values()))
    assert_trained_as_alone(found, 30, change)


def of_each_fold(wrap: Callable[..., Any]) -> list[Any]:
    found = []
    for steps in (10, 20):
        module = net()
        train(module, wrap(adam(module.parameters()), module), steps)
        found += values(module)
    return found


def of_phases(wrap: Callable[..., Any]) -> list[Any]:
    """Also with a head that is new."""
    module = net()
    train(module, wrap(adam(module.parameters()), module), 10)
    torch.manual_seed(1)
    module[2] = torch.nn.Linear(8, 1)
    train(module, wrap(torch.optim.RMSprop(module[2].parameters(), 0.01), module), 10)
    train(module, wrap(torch.optim.SGD(module.parameters(), 0.1, 0.9), module), 10)
    return values(module)


def of_optimizers_in_turn(wrap: Callable[..., Any]) -> list[Any]:
    module = net()
    slow = torch.optim.SGD(module[0].parameters(), 0.1, momentum=0.9)
    both = [wrap(adam(module.parameters()), module), wrap(slow, module)]
    for step in range(20):
        train(module, both[step % 2], 1)
    return values(module)


@pytest.mark.parametrize("of", [of_each_fold, of_phases, of_optimizers_in_turn])
def test_a_program_trains_several_models_and_a_model_by_several_optimizers(
    of: Callable[..., list[Any]],
) -> None:
    def program() -> list[Any]:
        strategy = rw.distribute.ParameterServerStrategy()

        def wrap(optimizer: Any, module: Any) -> Any:
            return rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module)

        return of(wrap)

    with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
        served = next(iter(cluster.run(program).values()))
    expected = of(lambda optimizer, module: optimizer)
    for found in (served, program()):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("deltas", ["allow", "always"])
def test_what_a_program_does_to_parameters_without_a_gradient_counts(deltas: Any) -> None:
    def shrink(module: Any, step: int) -> None:
        module[2].bias.requires_grad_(False)
        with torch.no_grad():
            module[2].bias.mul_(0.9)

    def program() -> list[Any]:
        module = net()
        optimizer = rw.training.torch.DistributedOptimizer(
            adam(module.parameters()),
            rw.distribute.ParameterServerStrategy(),
            module=module,
            deltas=deltas,
        )
        train(module, optimizer, 20, shrink)
        optimizer.refresh()
        return values(module)

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        found = next(iter(cluster.run(program).values()))
    assert_trained_as_alone(found, 20, shrink)


IN_SYNC = """
import sys
sys.path[:0] = {path}
import ropewalk as rw
from test_bridges_torch_changes import adam, clamp, net, train, values
strategy = rw.distribute.MultiWorkerMirroredStrategy()
module = net()
optimizer = rw.training.torch.DistributedOptimizer(
    adam(module.parameters()), strategy, module=module
)
train(module, optimizer, 30, clamp)
print("sum", sum(float(abs(value).sum()) for value in values(module)), flush=True)
"""


def test_what_all_workers_in_sync_do_to_parameters_counts(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    program.write_text(IN_SYNC.replace("{path}", repr(folders)))
    code, output, errors = processes.run_workers(program)
    assert code == 0, output + errors
    sums = [float(line.split(" sum ")[1]) for line in output.splitlines() if " sum " in line]
    alone = net()
    train(alone, adam(alone.parameters()), 30, clamp)
    wanted = sum(float(abs(value).sum()) for value in values(alone))
    np.testing.assert_allclose(sums, [wanted, wanted], rtol=1e-5)


def test_clamping_on_asynchronous_workers_says_what_to_write_and_that_works() -> None:
    def program(deltas: Any) -> float:
        module = net()
        optimizer = rw.training.torch.DistributedOptimizer(
            adam(module.parameters()),
            rw.distribute.ParameterServerStrategy(),
            module=module,
            deltas=deltas,
        )
        train(module, optimizer, 10, clamp)
        return max(float(abs(value).max()) for value in values(module))

    refused = pytest.raises(rw.errors.ConfigurationError, match='deltas="always"')
    with rw.testing.LocalCluster(workers=1, ps=1) as cluster, refused:
        cluster.run(lambda: program("allow"))
    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        assert max(cluster.run(lambda: program("always")).values()) <= 0.1001


def test_a_table_that_forward_scales_is_refused_with_several_workers() -> None:
    def program() -> None:
        table = torch.nn.Embedding(10, 4, max_norm=1.0)
        strategy = rw.distribute.ParameterServerStrategy()
        rw.training.torch.DistributedOptimizer(adam(table.parameters()), strategy, module=table)

    program()
    refused = pytest.raises(rw.errors.ConfigurationError, match="renorm")
    with rw.testing.LocalCluster(workers=1, ps=1) as cluster, refused:
        cluster.run(program)


def test_hooks_that_an_optimizer_had_before_are_called_once_a_step() -> None:
    for make in (adam, torch.optim.Rprop):
        module = net()
        called: list[str] = []
        inner = make(module.parameters())
        inner.register_step_pre_hook(lambda *_, called=called: called.append("before"))
        inner.register_step_post_hook(lambda *_, called=called: called.append("after"))
        optimizer = rw.training.torch.DistributedOptimizer(
            inner, rw.distribute.ParameterServerStrategy(), module=module
        )
        train(module, optimizer, 2)
        assert called == ["before", "after"] * 2, make


def test_a_state_that_servers_have_is_not_brought_back_in_silence() -> None:
    def wrapped(make: Any = adam, **options: Any) -> tuple[Any, Any]:
        module = net()
        return module, rw.training.torch.DistributedOptimizer(
            make(module.parameters()),
            rw.distribute.ParameterServerStrategy(),
            module=module,
            **options,
        )

    module, optimizer = wrapped()
    first = optimizer.state_dict()
    optimizer.load_state_dict(first)
    train(module, optimizer, 3)
    now = optimizer.state_dict()
    optimizer.load_state_dict(now)  # nothing has happened since
    train(module, optimizer, 1)
    for other in (first, now):
        with pytest.raises(rw.errors.ConfigurationError, match='deltas="always"'):
            optimizer.load_state_dict(other)
    for options in ({}, {"deltas": "always"}):
        with pytest.raises(rw.errors.ConfigurationError, match="model_dir"):
            wrapped(**options)[1].load_state_dict(now)  # of another run
    module, optimizer = wrapped(lambda p: torch.optim.SGD(p, 0.1))
    first = optimizer.state_dict()
    train(module, optimizer, 3)
    optimizer.load_state_dict(first)  # which has none


def test_groups_of_another_optimizer_of_the_job_do_not_stand_for_its_moments() -> None:
    """The job has made steps, as one that resumes has; but here its state is the first one's."""

    def program() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        modules = [net(), net()]
        first, second = (
            rw.training.torch.DistributedOptimizer(
                adam(module.parameters()), strategy, module=module, name=name
            )
            for name, module in zip("ab", modules, strict=True)
        )
        train(modules[0], first, 3)
        later = rw.training.torch.DistributedOptimizer(
            adam(net().parameters()), strategy, name="later"
        )
        for other in (second, later):
            with pytest.raises(rw.errors.ConfigurationError, match="of another optimizer"):
                other.load_state_dict(first.state_dict())

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        cluster.run(program)


def test_a_rate_that_is_a_tensor_may_be_changed_in_place() -> None:
    found = []
    for is_shared in (False, True):
        rate, module = torch.tensor(0.1), net()
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        if is_shared:
            optimizer = rw.training.torch.DistributedOptimizer(
                optimizer, rw.distribute.ParameterServerStrategy(), module=module
            )
        for _ in range(10):
            train(module, optimizer, 1)
            rate.mul_(0.8)
        found.append(values(module))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


class Lookahead:
    """Around another optimizer, and of torch's class by its base alone, as some libraries' are."""

    def __init__(self, inside: Any) -> None:
        self.inside, self.steps = inside, 0
        self.param_groups, self.defaults = inside.param_groups, inside.defaults
        self.state = inside.state
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def step(self, closure: Any = None) -> None:
        self.inside.step()
        self.steps += 1
        if self.steps % 3 == 0:
            parameters = (p for group in self.param_groups for p in group["params"])
            with torch.no_grad():
                for slow, parameter in zip(self.slow, parameters, strict=True):
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inside.zero_grad(set_to_none)


def test_an_optimizer_around_another_that_is_not_made_as_torchs_trains_as_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = type("TorchLookahead", (Lookahead, torch.optim.Optimizer), {})
    found = []
    for is_shared in (False, True):
        module = net()
        optimizer = kind(torch.optim.SGD(module.parameters(), 0.1, momentum=0.9))
        if is_shared:
            optimizer = rw.training.torch.DistributedOptimizer(
                optimizer, rw.distribute.ParameterServerStrategy(), module=module
            )
        train(module, optimizer, 10)
        found.append(values(module))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert "is not in the job's checkpoints" in caplog.text


def test_complex_parameters_are_refused_before_the_first_step() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(rw.errors.ConfigurationError, match="view_as_real"):
        rw.training.torch.DistributedOptimizer(
            torch.optim.Adam([parameter]), rw.distribute.ParameterServerStrategy()
        )


def test_moments_that_servers_have_are_not_cleared_or_replaced_in_silence() -> None:
    def wrapped(make: Any = adam, **options: Any) -> tuple[Any, Any, Any]:
        module = net()
        inner = make(module.parameters())
        optimizer = rw.training.torch.DistributedOptimizer(
            inner, rw.distribute.ParameterServerStrategy(), module=module, **options
        )
        train(module, optimizer, 3)
        return module[0].weight, inner, optimizer

    weight, inner, optimizer = wrapped()
    for _ in range(2):
        acts: list[Callable[[], Any]] = [
            optimizer.state.clear,
            inner.state.clear,
            lambda: optimizer.state[weight].update(step=0),
            lambda: optimizer.state[weight]["exp_avg"],
            lambda: optimizer.state.pop(weight),
            lambda: optimizer.state.__setitem__(weight, {}),
            lambda: setattr(optimizer, "state", collections.defaultdict(dict)),
        ]
        for act in acts:
            with pytest.raises(rw.errors.ConfigurationError, match='deltas="always"'):
                act()
        assert len(optimizer.state[weight]) == 0
        optimizer.load_state_dict(optimizer.state_dict())
    wrapped(lambda p: torch.optim.SGD(p, 0.1))[2].state.clear()  # which has none

    weight, inner, optimizer = wrapped(deltas="always")
    optimizer.state = collections.defaultdict(dict)
    assert inner.state is optimizer.state
    assert not inner.state[weight]


def test_a_shared_optimizer_is_not_copied() -> None:
    module = net()
    optimizer = rw.training.torch.DistributedOptimizer(
        adam(module.parameters()), rw.distribute.ParameterServerStrategy(), module=module
    )
    with pytest.raises(rw.errors.ConfigurationError, match="cannot be copied"):
        copy.deepcopy(optimizer)
