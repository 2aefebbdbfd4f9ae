"""The bridge to PyTorch: the same curves as without it, sparse gradients, AMP, state in and out."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.resumed import resumed
from helpers.sharded import through_a_session
from helpers.strict_cupy import played_gpus

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # of the first sparse tensor
    pytest.mark.filterwarnings("ignore:Lazy modules"),
]

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)
Make = Callable[[Any], Any]


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def wrap(make: Make, module: Any, strategy: Any = None, **more: Any) -> Any:
    strategy = strategy if strategy is not None else rw.distribute.ParameterServerStrategy()
    return rw.training.torch.DistributedOptimizer(
        make(module.parameters()), strategy, module=module, **more
    )


def losses(module: Any, optimizer: Any, steps: int, schedule: bool = False) -> list[float]:
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    found = []
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if schedule else None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (module(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        if rates is not None:
            rates.step()
        found.append(loss.item())
    return found


SERVED: dict[str, Make] = {
    "sgd-decay": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam-decay": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.02),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.3),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-2, momentum_decay=1.0),
}


@pytest.mark.parametrize("make", SERVED.values(), ids=SERVED.keys())
def test_an_optimizer_with_a_rule_runs_on_the_servers_with_the_curve_it_has_alone(
    make: Make,
) -> None:
    """With a scheduler, too: what it sets counts from the next step on."""
    alone, shared = net(), net()
    optimizer = wrap(make, shared, deltas="forbid")
    assert optimizer.worker_reason is None
    np.testing.assert_allclose(
        losses(shared, optimizer, 200, schedule=True),
        losses(alone, make(alone.parameters()), 200, schedule=True),
        rtol=1e-4,
        atol=1e-5,
    )


LEFT: dict[str, Make] = {
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT.keys())
def test_any_other_runs_on_the_worker_with_the_same_curve(make: Make) -> None:
    alone, shared = net(), net()
    optimizer = wrap(make, shared)
    assert optimizer.worker_reason
    np.testing.assert_allclose(
        losses(shared, optimizer, 50), losses(alone, make(alone.parameters()), 50), rtol=1e-5
    )
    with pytest.raises(rw.errors.ConfigurationError, match="deltas are forbidden"):
        wrap(make, net(), deltas="forbid")


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 1e-2)


def test_two_workers_begin_with_the_chiefs_values_and_learn_together() -> None:
    def program() -> tuple[float, float, float]:
        strategy = rw.distribute.ParameterServerStrategy()
        module = net()
        if not strategy.is_chief:
            with torch.no_grad():
                module[0].weight.fill_(7)
        optimizer = wrap(adam, module, strategy)
        first = float(module[0].weight.detach().max())
        found = losses(module, optimizer, 60)
        strategy.barrier()
        optimizer.refresh()
        last = float((module(torch.from_numpy(X)) - torch.from_numpy(Y)).square().mean().detach())
        return first, found[0], last

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        results = list(cluster.run(program).values())
    assert all(first < 1 for first, _, _ in results)
    assert results[0][2] == results[1][2] < 0.7 * max(result[1] for result in results)


def test_deltas_of_two_workers_are_all_there() -> None:
    """Rates of 1 and gradients of known sizes: what both moved is the sum of their steps."""

    def program() -> list[float]:
        strategy = rw.distribute.ParameterServerStrategy()
        module = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.zeros_(module.weight)
        optimizer = wrap(lambda p: torch.optim.SGD(p, 1.0), module, strategy, deltas="always")
        for _ in range(25):
            module.weight.grad = torch.full((1, 3), 1.0 + strategy.task_index)
            optimizer.step()
        strategy.barrier()
        optimizer.refresh()
        values: list[float] = module.weight.detach().flatten().tolist()
        return values

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        assert list(cluster.run(program).values()) == [[-75.0] * 3] * 2


@pytest.mark.parametrize("kind", ["embedding", "bag"])
@pytest.mark.parametrize("name", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse_gradients_travel_as_rows(kind: str, name: str) -> None:
    """Other rows keep their values, also under an optimizer with a state."""
    torch.manual_seed(0)
    layer = torch.nn.Embedding if kind == "embedding" else torch.nn.EmbeddingBag
    alone = layer(1000, 4, sparse=True)
    shared = copy.deepcopy(alone)
    make: Make = lambda p: getattr(torch.optim, name)(p, lr=0.1)  # noqa: E731
    strategy = through_a_session()
    own, optimizer = make(list(alone.parameters())), wrap(make, shared, strategy)
    ids = torch.tensor([[3, 7, 3], [999, 0, 7]])
    session = optimizer.store.strategy.extended.runtime.session
    for module, each in ((alone, own), (shared, optimizer)):
        for _ in range(5):
            each.zero_grad()
            module(ids).square().sum().backward()
            before = session.counters.pushed
            each.step()
    assert 0 < session.counters.pushed - before < 300  # four rows of four numbers, and their ids
    torch.testing.assert_close(shared.weight, alone.weight, rtol=1e-5, atol=1e-6)


def test_weight_decay_and_sparse_gradients_are_refused_together() -> None:
    module = torch.nn.Embedding(10, 2, sparse=True)
    optimizer = wrap(lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1), module)
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(rw.errors.ConfigurationError, match="'weight' has a sparse gradient"):
        optimizer.step()


def test_rows_of_a_gradient_become_a_sparse_tensor_again() -> None:
    """As an optimizer of the worker's own gets them, reduced between workers in sync."""
    from ropewalk.annexes.torch_bridge.tensors import from_gradient, to_gradient

    module = torch.nn.Embedding(10, 2, sparse=True)
    module(torch.tensor([[1, 4, 1]])).square().sum().backward()
    again = from_gradient(to_gradient(module.weight.grad), module.weight)
    assert again.is_sparse
    torch.testing.assert_close(again.to_dense(), module.weight.grad.to_dense())


def test_accumulated_gradients_are_one_push() -> None:
    module = net()
    optimizer = wrap(lambda p: torch.optim.SGD(p, 0.1), module)
    start = module[0].weight.detach().clone()
    total = torch.zeros_like(start)
    for part in torch.from_numpy(X).split(16):
        module(part).square().sum().backward()
    total = module[0].weight.grad.clone()
    optimizer.step()
    assert optimizer.store.step == 1
    torch.testing.assert_close(module[0].weight.detach(), start - 0.1 * total)


@pytest.mark.parametrize("unscaled", [False, True], ids=["plain", "unscaled by the program"])
def test_a_grad_scaler_skips_a_step_with_infinities_and_takes_its_scale_out(unscaled: bool) -> None:
    module = torch.nn.Linear(4, 1, bias=False)
    optimizer = wrap(lambda p: torch.optim.SGD(p, 1.0), module)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    start = module.weight.detach().clone()
    for number, factor in enumerate((1.0, float("inf"), 2.0)):
        optimizer.zero_grad()
        scaler.scale(factor * module.weight.sum()).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.store.step == (1, 1, 2)[number]
    assert scaler.get_scale() == 4.0
    torch.testing.assert_close(module.weight.detach(), start - 3)


def test_hooks_see_gradients_without_the_scale_of_a_grad_scaler_as_in_pytorch_alone() -> None:
    seen: dict[str, list[float]] = {"alone": [], "shared": []}
    for kind, found in seen.items():
        module = torch.nn.Linear(4, 1, bias=False)
        optimizer = torch.optim.RMSprop(module.parameters(), 0.1)
        if kind == "shared":
            optimizer = wrap(lambda p: torch.optim.RMSprop(p, 0.1), module)
        optimizer.register_step_pre_hook(
            lambda *_, module=module, found=found: found.append(float(module.weight.grad.sum()))
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale(factor * module.weight.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert seen["shared"] == seen["alone"] == [4.0, 8.0]


def test_a_scheduler_of_an_optimizer_that_was_wrapped_later_does_not_warn() -> None:
    module = net()
    inner = torch.optim.RMSprop(module.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1)
    strategy = rw.distribute.ParameterServerStrategy()
    optimizer = rw.training.torch.DistributedOptimizer(inner, strategy, module=module)
    module(torch.from_numpy(X)).sum().backward()
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_bfloat16_parameters_go_to_the_servers_and_back() -> None:
    module = torch.nn.Linear(4, 2).to(torch.bfloat16)
    optimizer = wrap(lambda p: torch.optim.SGD(p, 0.5), module)
    start = module.bias.detach().clone()
    module(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(module.bias.detach(), start - 0.5)


def test_autocast_trains_float32_parameters() -> None:
    module = net()
    optimizer = wrap(adam, module)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    found = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (module(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.7 * found[0]
    assert module[0].weight.dtype == torch.float32


def test_parameters_are_the_same_objects_in_the_same_memory() -> None:
    """What ``torch.compile``, hooks and views of parameters rely on."""
    module = net()
    before = [(id(p), p.data_ptr()) for p in module.parameters()]
    optimizer = wrap(adam, module)
    losses(module, optimizer, 2)
    assert [(id(p), p.data_ptr()) for p in module.parameters()] == before


def test_dense_gradients_are_handed_over_without_a_copy(calls: Calls) -> None:
    """What the session is given is the memory of ``grad``; the copy into the session is the only
    one.
    """
    module = net()
    optimizer = wrap(lambda p: torch.optim.SGD(p, 0.1), module, through_a_session())
    exchanges = calls.noted(optimizer.store, "exchange")
    losses(module, optimizer, 1)
    [(step,)] = exchanges
    assert {name: array.ctypes.data for name, array in step.gradients.items()} == {
        name: parameter.grad.data_ptr() for name, parameter in module.named_parameters()
    }


def test_a_module_shows_what_all_have_learned_with_its_buffers() -> None:
    def program() -> tuple[list[float], int, bool]:
        strategy = rw.distribute.ParameterServerStrategy()
        module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
        optimizer = wrap(adam, module, strategy)
        model = rw.training.torch.DistributedModule(module, optimizer)
        for _ in range(5 if strategy.is_chief else 2):
            optimizer.zero_grad()
            model(torch.from_numpy(X)).square().mean().backward()
            optimizer.step()
        strategy.barrier()
        model.eval()
        state = model.state_dict()
        same = list(state) == list(module.state_dict())
        return state["1.running_mean"].tolist(), int(state["1.num_batches_tracked"]), same

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        first, second = cluster.run(program).values()
    assert first == second
    assert first[1:] == (7, True)


def test_what_a_module_loads_all_workers_get() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    module = net()
    optimizer = wrap(adam, module, strategy)
    model = rw.training.torch.DistributedModule(module, optimizer)
    values = {name: torch.full_like(value, 0.25) for name, value in module.state_dict().items()}
    model.load_state_dict(values)
    assert float(optimizer.store.pull(["0.weight"])["0.weight"].max()) == 0.25


def test_an_optimizers_state_goes_out_and_in_where_it_is() -> None:
    kept = wrap(adam, net(), deltas="always")
    losses_of = net()
    other = wrap(adam, losses_of, deltas="always")
    losses(losses_of, other, 3)
    kept.load_state_dict(other.state_dict())
    assert float(kept.state_dict()["state"][0]["step"]) == 3
    served = wrap(adam, net())
    assert served.state_dict()["state"] == {}
    served.load_state_dict(served.state_dict())
    with pytest.raises(rw.errors.ConfigurationError, match='deltas="always"'):
        served.load_state_dict(other.state_dict())


def test_a_compiled_module_goes_on_with_the_values_that_come_back() -> None:
    """Its graph holds the parameters; they are written in place. The curve is that without us."""
    alone, shared = net(), net()
    compiled = torch.compile(shared, backend="eager")
    optimizer = wrap(adam, compiled)
    assert optimizer.store.names[0] == "0.bias"
    np.testing.assert_allclose(
        losses(compiled, optimizer, 20),
        losses(alone, adam(alone.parameters()), 20),
        rtol=1e-4,
        atol=1e-5,
    )


def test_what_was_computed_before_a_step_cannot_be_differentiated_after_it() -> None:
    """As in PyTorch: it needs the values that the step has overwritten."""
    module = net()
    optimizer = wrap(adam, module)
    loss = (module(torch.from_numpy(X)) - torch.from_numpy(Y)).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_whose_memory_was_replaced_is_updated_where_it_is_now() -> None:
    module = torch.nn.Linear(3, 3, bias=False)
    optimizer = wrap(lambda p: torch.optim.SGD(p, 1.0), module)
    before = module.weight.detach().clone()
    for replaced in (before.clone(), before.clone().t().contiguous().t()):
        module.weight.data = replaced
        module.weight.grad = torch.ones(3, 3)
        optimizer.step()
    torch.testing.assert_close(module.weight.detach(), before - 1)  # as torch alone
    optimizer.refresh()
    torch.testing.assert_close(module.weight.detach(), before - 1)
    module.weight.data = before.clone()  # as torch.nn.utils.prune.remove does
    optimizer.refresh()
    torch.testing.assert_close(module.weight.detach(), before)


@pytest.mark.parametrize("make", [adam, torch.optim.Rprop], ids=["on the servers", "here"])
def test_what_a_program_does_to_parameters_between_steps_is_kept_alone(make: Make) -> None:
    """A Wasserstein critic's weights are clamped; through ``data`` no version counts it."""
    alone, shared = net(), net()
    own, optimizer = make(list(alone.parameters())), wrap(make, shared)
    for _ in range(200):
        for module, each in ((alone, own), (shared, optimizer)):
            losses(module, each, 1)
            with torch.no_grad():
                for number, parameter in enumerate(module.parameters()):
                    (parameter.data if number % 2 else parameter).clamp_(-0.1, 0.1)
    for mine, theirs in zip(shared.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    values = optimizer.store.pull()
    for name, parameter in shared.named_parameters():
        np.testing.assert_array_equal(values[name], parameter.detach().numpy())


def test_what_was_assigned_before_the_first_step_counts() -> None:
    """As by an Estimator that restores a checkpoint once the model and its optimizer are made."""
    module = torch.nn.Linear(3, 1, bias=False)
    optimizer = wrap(lambda p: torch.optim.SGD(p, 1.0), module)
    for value in (5.0, 7.0):
        optimizer.store.assign({"weight": np.full((1, 3), value, np.float32)})
        module.weight.grad = torch.ones(1, 3)
        optimizer.step()
        torch.testing.assert_close(module.weight.detach(), torch.full((1, 3), value - 1))


def test_a_ruined_step_alone_leaves_the_averages_of_batch_norm() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = wrap(adam, module)
    x = torch.from_numpy(X)
    for bad in (False, True, False):
        optimizer.zero_grad()
        (module(x * float("nan")) if bad else module(x)).square().sum().backward()
        optimizer.step()
    for name, value in optimizer.store.pull().items():
        assert np.isfinite(value).all(), name
    assert module[1].running_mean.isfinite().all()
    assert optimizer.store.step == 2


def test_torchs_sampler_gives_each_worker_its_part() -> None:
    def program() -> list[int]:
        strategy = rw.distribute.ParameterServerStrategy()
        data = torch.utils.data.TensorDataset(torch.arange(8))
        sampler = torch.utils.data.DistributedSampler(
            data,
            num_replicas=strategy.extended.num_input_pipelines,
            rank=strategy.extended.input_pipeline_id,
        )
        batches = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
        return [int(each) for (batch,) in batches for each in batch]

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        parts = list(cluster.run(program).values())
    assert sorted(parts[0] + parts[1]) == list(range(8))


MOVED: dict[str, Make] = SERVED | {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
}
del MOVED["nadam"]


@pytest.mark.parametrize("make", MOVED.values(), ids=MOVED.keys())
def test_a_run_of_pytorch_alone_goes_on_under_servers_with_its_optimizers_state(
    make: Make, tmp_path: Path
) -> None:
    alone = net()
    own = make(alone.parameters())
    losses(alone, own, 30)
    path = rw.training.torch.write_checkpoint(str(tmp_path), alone, own)
    assert Path(path).parent == tmp_path
    shared = net()  # of other values; the checkpoint's count
    optimizer = wrap(make, shared, resumed(tmp_path), deltas="forbid")
    np.testing.assert_allclose(
        losses(shared, optimizer, 30), losses(alone, own, 30), rtol=1e-4, atol=1e-5
    )


def test_a_state_without_a_counterpart_is_not_written(tmp_path: Path) -> None:
    module = net()
    for make, said in ((LEFT["amsgrad"], "keeps the maximum"), (SERVED["nadam"], "its own form")):
        with pytest.raises(rw.errors.ConfigurationError, match=said):
            rw.training.torch.write_checkpoint(str(tmp_path), module, make(module.parameters()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("gpus", [0, 8])
def test_several_devices_in_a_process_are_refused_with_what_to_do(gpus: int) -> None:
    """``python train.py`` on a machine with many GPUs has a replica on each."""
    with played_gpus(gpus):
        if not gpus:
            rw.config.set_logical_cpu_devices(2)
        said = "CUDA_VISIBLE_DEVICES=0.*--workers 8" if gpus else "set_logical_cpu.*--workers 2"
        parameters = net().parameters()
        try:
            with pytest.raises(rw.errors.ConfigurationError, match=said):
                rw.training.torch.DistributedOptimizer(
                    torch.optim.SGD(parameters, 0.1), rw.distribute.MirroredStrategy()
                )
        finally:
            rw.config.set_logical_cpu_devices(1)


class Assigning(torch.optim.Optimizer):  # type: ignore[misc]
    """Gradient descent that gives parameters other memory, in each second step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    def step(self, closure: Any = None) -> None:
        """Make a step."""
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            if self.steps % 2:
                p.data.add_(p.grad, alpha=-0.1)
            else:
                p.data = p.data - 0.1 * p.grad


def test_values_are_those_of_an_optimizer_that_replaces_memory() -> None:
    module, x = net(), torch.from_numpy(X)
    optimizer = wrap(Assigning, module)
    for step in range(6):
        optimizer.zero_grad()
        (module(x) * (float("nan") if step == 3 else 1.0)).square().mean().backward()
        optimizer.step()
        if step != 1:  # the first time it is seen in the step after it
            stored = optimizer.store.pull()
            for name, parameter in module.named_parameters():
                np.testing.assert_array_equal(stored[name], parameter.detach(), err_msg=str(step))
    assert np.isfinite(stored["0.weight"]).all()


def test_mistakes_are_named() -> None:
    strategy = rw.distribute.ParameterServerStrategy
    wrapped = rw.training.torch.DistributedOptimizer
    with pytest.raises(ValueError, match=r"not one of the module's.*torch\.nn\.ParameterList\("):
        wrapped(adam(net().parameters()), strategy(), module=net())
    with pytest.raises(rw.errors.ConfigurationError, match="SGD of the inner loop as it is"):
        wrapped(torch.optim.SGD(net().parameters(), 0.1, differentiable=True), strategy())
    lazy = torch.nn.LazyLinear(3)
    with pytest.raises(rw.errors.ConfigurationError, match="run one batch through the module"):
        wrapped(adam(lazy.parameters()), strategy())
    stepped = net()
    used = adam(stepped.parameters())
    losses(stepped, used, 1)
    with pytest.raises(rw.errors.ConfigurationError, match="has a state already"):
        wrapped(used, strategy())
    of_servers = adam(net().parameters())
    for shared in (wrapped(of_servers, strategy()), of_servers):
        with pytest.raises(rw.errors.ConfigurationError, match="is shared already"):
            wrapped(shared, strategy())
    optimizer = wrap(adam, net())
    with pytest.raises(rw.errors.ConfigurationError, match="no further parameters"):
        optimizer.add_param_group({"params": []})
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(rw.errors.ConfigurationError, match="parameter group 0 was changed"):
        optimizer.step()
    fewer = wrap(adam, net())
    fewer.param_groups[0]["params"].pop()
    with pytest.raises(rw.errors.ConfigurationError, match=r"had 4 parameters.*and has 3 now"):
        fewer.step()
    rw.config.set_logical_cpu_devices(2)
    try:
        with pytest.raises(rw.errors.ConfigurationError, match="2 replicas in this process"):
            wrap(adam, net(), rw.distribute.MirroredStrategy())
    finally:
        rw.config.set_logical_cpu_devices(1)


@pytest.mark.parametrize("make", [adam, torch.optim.RMSprop], ids=["on the servers", "here"])
def test_a_loss_of_nan_changes_nothing_and_ends_the_program_in_the_end(make: Any) -> None:
    module = net()
    optimizer = wrap(make, module)
    start = module[0].weight.detach().clone()

    def diverge() -> None:
        for _ in range(1000):
            (module(torch.from_numpy(X)).sum() * float("nan")).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(rw.errors.NonFiniteGradientError, match="diverged"):
        diverge()
    torch.testing.assert_close(module[0].weight.detach(), start)


def test_parameters_without_a_module_have_numbers_or_the_names_torch_was_given() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    named = rw.training.torch.DistributedOptimizer(
        torch.optim.SGD(net().named_parameters(), 0.1), strategy, name="a"
    )
    numbered = rw.training.torch.DistributedOptimizer(adam(net().parameters()), strategy, name="b")
    assert set(named.store.names) == {"a/0.weight", "a/0.bias", "a/2.weight", "a/2.bias"}
    assert set(numbered.store.names) == {f"b/parameter_{i}" for i in range(4)}


def test_moments_of_half_precision_are_told_to_be_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cases: list[tuple[Any, Any, bool]] = [
        (torch.optim.Adam, "allow", True),
        (torch.optim.Adam, "always", False),
        (torch.optim.SGD, "allow", True),
    ]
    for make, deltas, tells in cases:
        module = torch.nn.Linear(3, 1).to(torch.bfloat16)
        rw.training.torch.DistributedOptimizer(
            make(module.parameters(), 1e-2),
            rw.distribute.ParameterServerStrategy(),
            module=module,
            deltas=deltas,
        )
        told = [each.getMessage() for each in caplog.records if "float32" in each.getMessage()]
        assert len(told) == tells, make
        caplog.clear()


def test_rounded_deltas_of_half_precision_are_told_of_on_a_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def program() -> None:
        module = torch.nn.Linear(3, 1).half()
        rw.training.torch.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), 1e-2),
            rw.distribute.ParameterServerStrategy(),
            module=module,
            deltas="always",
        )

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        cluster.run(program)
    told = [each.getMessage() for each in caplog.records if "rounded to" in each.getMessage()]
    assert len(told) == 1
    assert "float16" in told[0]
    assert "keep parameters in float32" in told[0]
