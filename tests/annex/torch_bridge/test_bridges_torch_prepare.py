"""``rw.training.torch.prepare``: alone nothing changes; with workers each has its part."""

import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.resumed import resumed
from helpers.sharded import through_a_session
from ropewalk.core.errors import ConfigurationError
from ropewalk.distribute.base.moved_average import MovedAverage

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.bridges

X = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32))
Y = X.sum(1, keepdim=True)


def loader(**arguments: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True} | arguments
    if given["shuffle"] and "generator" not in given:
        given["generator"] = torch.Generator().manual_seed(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), **given)


def trained(prepare: Callable[..., Any]) -> tuple[list[float], list[float]]:
    """Losses and rates of a program of PyTorch alone, but for the line of ``prepare``."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=30)
    module, optimizer, batches, rates = prepare(module, optimizer, loader(), rates)
    losses, seen = [], []
    for _ in range(2):
        for x, y in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(module(x), y)
            loss.backward()
            optimizer.step()
            rates.step()
            losses.append(loss.item())
            seen.append(rates.get_last_lr()[0])
    return losses, seen


@pytest.mark.parametrize(
    "make", [rw.distribute.ParameterServerStrategy, rw.distribute.get_strategy]
)
def test_alone_a_program_computes_what_it_did(make: Callable[[], Any]) -> None:
    strategy = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that the scheduler was stepped before its optimizer
        shared = trained(lambda *things: rw.training.torch.prepare(strategy, *things))
    plain = trained(lambda *things: things)
    np.testing.assert_allclose(shared[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(shared[1], plain[1], rtol=1e-12)


def test_each_worker_has_its_part_of_every_epoch_and_another_order_in_each() -> None:
    parts = [rw.training.torch.WorkerLoader(loader(), 3, worker) for worker in range(3)]
    orders = []
    for _ in range(2):
        rows = [torch.cat([x for x, _ in part]) for part in parts]
        assert [len(part) for part in parts] == [5, 5, 5]
        assert [len(each) for each in rows] == [20, 20, 20]
        together = torch.cat(rows)
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, X.tolist()))
        orders.append(together)
    assert not torch.equal(*orders)


def test_a_loader_in_order_stays_in_order_and_keeps_its_settings() -> None:
    part = rw.training.torch.WorkerLoader(loader(shuffle=False, drop_last=True, batch_size=7), 2, 1)
    assert torch.equal(torch.cat([x for x, _ in part]), X[1::2][:28])
    assert (part.batch_size, part.drop_last) == (7, True)


def numbers(count: int, **arguments: Any) -> Any:
    return torch.utils.data.DataLoader(torch.arange(count), **arguments)


def parts_of(loader: Any, workers: int, train: bool | None = None) -> list[list[int]]:
    every = [
        rw.training.torch.WorkerLoader(loader, workers, each, train=train)
        for each in range(workers)
    ]
    return [[number for batch in part for number in batch.tolist()] for part in every]


@pytest.mark.parametrize("workers", [2, 3, 4, 13])
@pytest.mark.parametrize(("shuffle", "train"), [(False, None), (False, False), (True, False)])
def test_what_evaluates_counts_each_example_once(
    shuffle: bool, train: bool | None, workers: int
) -> None:
    parts = parts_of(numbers(11, batch_size=2, shuffle=shuffle), workers, train)
    assert sorted(chain(*parts)) == list(range(11))


@pytest.mark.parametrize(("shuffle", "train"), [(True, None), (True, True), (False, True)])
def test_what_trains_has_as_many_batches_everywhere_and_says_what_it_repeats(
    shuffle: bool, train: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ropewalk")
    parts = parts_of(numbers(11, batch_size=2, shuffle=shuffle), 3, train)
    assert [len(part) for part in parts] == [4, 4, 4]
    assert set(chain(*parts)) == set(range(11))
    assert "of 11 examples for 3 workers each has 4 in an epoch" in caplog.text
    assert "repeated: 1" in caplog.text


@pytest.mark.parametrize("train", [True, False])
def test_a_worker_that_would_get_no_batch_is_told_all_numbers(train: bool) -> None:
    few = numbers(11, batch_size=4, shuffle=train, drop_last=True)
    for worker in range(3):
        with pytest.raises(
            ConfigurationError, match=r"of 11 examples for 3 workers one has 3, fewer than.* of 4"
        ):
            rw.training.torch.WorkerLoader(few, 3, worker)
    assert len(rw.training.torch.WorkerLoader(few, 2, 0)) == 1


def test_a_worker_without_an_example_to_evaluate_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert not len(rw.training.torch.WorkerLoader(numbers(2), 3, 2))
    assert "this worker has none of 2 examples for 3 workers" in caplog.text


def test_asynchronous_workers_gather_nothing_and_are_told_what_to_write() -> None:
    values = torch.arange(3)
    assert rw.training.torch.gather_for_metrics(rw.distribute.get_strategy(), values) is values
    extended = SimpleNamespace(num_input_pipelines=2, num_replicas_in_sync=1, replica_devices=("",))
    asynchronous: Any = SimpleNamespace(extended=extended, num_training_tasks=2)
    with pytest.raises(ConfigurationError, match=r"2 workers.*rw\.metrics.*barrier\(\)"):
        rw.training.torch.gather_for_metrics(asynchronous, values)


class Iterable(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(X)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.utils.data.DataLoader(Iterable()), "iterable"),
        (
            lambda: loader(
                shuffle=False,
                sampler=torch.utils.data.WeightedRandomSampler([1.0] * 60, 60),
            ),
            "WeightedRandomSampler",
        ),
        (
            lambda: loader(
                shuffle=False, sampler=torch.utils.data.RandomSampler(X, replacement=True)
            ),
            "replacement",
        ),
    ],
)
def test_a_loader_that_cannot_be_divided_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){says}.*input_pipeline_id"):
        rw.training.torch.WorkerLoader(make(), 2, 0)


def scheduled(strategy: Any = None, **schedule: Any) -> tuple[Any, Any, Any]:
    """An optimizer, its scheduler, and another optimizer of the same job."""
    strategy = strategy or rw.distribute.ParameterServerStrategy()
    made = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
    rates = torch.optim.lr_scheduler.StepLR(made[0], **schedule)
    shared, other = (
        rw.training.torch.DistributedOptimizer(each, strategy, name=str(number))
        for number, each in enumerate(made)
    )
    return shared, rw.training.torch.JobScheduler(rates, shared), other


def stepped(optimizer: Any) -> None:
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    optimizer.step()


def by_another_worker(optimizer: Any, updates: int) -> None:
    """Count updates of the same optimizer that another worker has pushed."""
    none, made = np.zeros((), np.int64), np.full((), updates, np.int64)
    moved = {optimizer.updates.name: MovedAverage(none, made, 0.0)}
    optimizer.store.strategy.run(lambda: optimizer.store.push_averages(moved))


def test_a_scheduler_follows_the_updates_of_its_own_optimizer_by_all_workers() -> None:
    optimizer, rates, other = scheduled(through_a_session(), step_size=10, gamma=0.5)
    for _ in range(5):
        stepped(other)
    by_another_worker(optimizer, 39)
    stepped(optimizer)  # of a worker that has come late
    rates.step()
    assert (rates.last_epoch, rates.get_last_lr()) == (40, [0.5**4])
    stepped(other)
    stepped(optimizer)
    rates.step()
    assert rates.last_epoch == 41


def test_schedulers_of_two_optimizers_in_turn_have_the_rates_they_have_alone() -> None:
    """As of a GAN, whose discriminator makes two steps for each of the generator."""

    def rates_of(prepare: Callable[..., Any]) -> list[list[float]]:
        made = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2)]
        rates = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in made]
        one, other, slow, fast = prepare(*made, *rates)
        seen = []
        for _ in range(5):
            stepped(one)
            slow.step()
            for _ in range(2):
                stepped(other)
                fast.step()
            seen.append([*slow.get_last_lr(), *fast.get_last_lr()])
        return seen

    strategy = rw.distribute.ParameterServerStrategy()
    shared = rates_of(lambda *things: rw.training.torch.prepare(strategy, *things))
    np.testing.assert_allclose(shared, rates_of(lambda *things: things), rtol=1e-12)


def test_a_run_that_resumes_makes_its_first_step_at_the_rate_where_it_was(tmp_path: Path) -> None:
    alone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for _ in range(25):
        stepped(alone)
    module = torch.nn.ParameterList(alone.param_groups[0]["params"])
    alone.state[module[0]]["step"] = 25.0  # which plain SGD does not count
    rw.training.torch.write_checkpoint(str(tmp_path), module, alone)
    fresh = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1))])
    optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.5)
    _, optimizer, rates = rw.training.torch.prepare(resumed(tmp_path), fresh, optimizer, rates)
    assert (rates.last_epoch, optimizer.param_groups[0]["lr"]) == (25, 0.25)
    stepped(optimizer)
    rates.step()
    assert rates.last_epoch == 26


@pytest.mark.parametrize("make", [through_a_session, rw.distribute.ParameterServerStrategy])
def test_a_step_that_a_grad_scaler_leaves_out_counts_as_it_does_alone(
    make: Callable[[], Any],
) -> None:
    optimizer, rates, _ = scheduled(make(), step_size=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    [parameter] = optimizer.param_groups[0]["params"]
    for scale in (1.0, float("inf"), 1.0):
        scaler.scale((parameter * scale).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        rates.step()
        optimizer.zero_grad()
    assert (rates.last_epoch, int(optimizer.updates.total)) == (3, 3)


def test_a_scheduler_that_was_made_too_late_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    shared = rw.training.torch.prepare(rw.distribute.ParameterServerStrategy(), optimizer)
    late = torch.optim.lr_scheduler.StepLR(shared, 10)
    with pytest.raises(ValueError, match="made after its optimizer was shared"):
        rw.training.torch.JobScheduler(late, shared)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_scheduler_of_epochs_is_refused(steps: int) -> None:
    optimizer, rates, _ = scheduled(step_size=10)
    for _ in range(steps):
        stepped(optimizer)
    with pytest.raises(ConfigurationError, match=f"StepLR.*after {steps} steps.*out of prepare"):
        rates.step()


def test_several_modules_keep_their_parameters_apart() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    made = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, other)]
    both = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    _, _, first, second = rw.training.torch.prepare(strategy, one, other, *made)
    assert [sorted(each.store.variables) for each in (first, second)] == [
        ["0/bias", "0/weight"],
        ["1/bias", "1/weight"],
    ]
    with pytest.raises(TypeError, match="without its optimizer"):
        rw.training.torch.prepare(strategy, torch.optim.lr_scheduler.StepLR(both, 1))


def test_a_parameter_beside_the_module_is_trained_in_a_module_of_its_own() -> None:
    """As learned weights of the losses are: the error of a module without it says to write this."""
    module, scale = torch.nn.Linear(4, 1), torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*module.parameters(), scale], lr=0.1)
    strategy = rw.distribute.ParameterServerStrategy()
    beside = torch.nn.ParameterList([scale])
    _, _, optimizer = rw.training.torch.prepare(strategy, module, beside, optimizer)
    (module(X).mean() * scale).backward()
    wanted = scale.item() - 0.1 * scale.grad.item()
    optimizer.step()
    assert scale.item() == pytest.approx(wanted)
    assert sorted(optimizer.store.variables) == ["0.bias", "0.weight", "1.0"]


@pytest.mark.parametrize("thing", [[1, 2], "loader", torch.zeros(1)])
def test_anything_else_is_refused(thing: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with pytest.raises(TypeError, match=rf"not {type(thing).__name__}"):
        rw.training.torch.prepare(strategy, thing)
