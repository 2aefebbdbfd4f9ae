"""Tables in PyTorch: the numbers of its own ``EmbeddingBag``, and rows in the push of a step."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.bridges

emb = rw.embedding
ROWS, DIM, EXAMPLES = 40, 4, 8
LENGTHS = np.array([2, 0, 3, 1, 1, 2, 1, 2, 1, 1, 4, 1, 2, 1, 1, 1])  # of "a", then of "b"
IDS = np.random.default_rng(0).integers(0, ROWS, LENGTHS.sum())
Y = np.random.default_rng(1).normal(size=(EXAMPLES, 1)).astype(np.float32)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.last = embeddings, torch.nn.Linear(2 * DIM, 1)

    def forward(self, features: Any) -> Any:
        return self.last(self.embeddings(features).values())


class Alone(torch.nn.Module):  # type: ignore[misc]
    """PyTorch's own bags over a table of ones; two features share it."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
        torch.nn.init.ones_(self.bag.weight)

    def forward(self, features: Any) -> Any:
        parts, start = [], 0
        for lengths in LENGTHS.reshape(2, -1):
            offsets = torch.from_numpy(np.r_[0, np.cumsum(lengths)])
            ids = torch.from_numpy(IDS[start : start + lengths.sum()])
            parts.append(self.bag(ids, offsets))
            start += lengths.sum()
        return rw.training.torch.KeyedTensor(dict(zip("ab", parts, strict=True)))


def jagged() -> Any:
    return rw.training.torch.KeyedJaggedTensor.from_lengths_sync(
        ["a", "b"], torch.from_numpy(IDS), torch.from_numpy(LENGTHS)
    )


def collection(strategy: Any, **table: Any) -> Any:
    own: dict[str, Any] = {"initializer": rw.Initializer("ones"), "combiner": "sum"} | table
    shared = emb.TableConfig("t", DIM, **own)
    features = [emb.FeatureConfig("a", shared), emb.FeatureConfig("b", shared)]
    return rw.training.torch.EmbeddingBagCollection(features, rw.optimizers.SGD(0.02), strategy)


def loss_of(module: Any, features: Any) -> Any:
    return (module(features) - torch.from_numpy(Y)).square().mean()


def curve(module: Any, optimizer: Any, steps: int = 20) -> list[float]:
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, jagged())
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def wrapped(make: Any, net: Any, strategy: Any) -> Any:
    return rw.training.torch.DistributedOptimizer(make(net.last.parameters()), strategy, module=net)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.02)


def amsgrad(parameters: Any) -> Any:  # has no rule: runs on the worker
    return torch.optim.Adam(parameters, 0.01, amsgrad=True)


@pytest.mark.parametrize("table", [{}, {"vocabulary_size": ROWS}], ids=["grows", "fixed"])
@pytest.mark.parametrize("make", [sgd, amsgrad])
def test_the_curve_is_that_of_pytorchs_own_bags(make: Any, table: Any) -> None:
    alone = Net(Alone())
    own = [make(alone.last.parameters()), sgd(alone.embeddings.parameters())]

    class Both:
        def zero_grad(self) -> None:
            alone.zero_grad()

        def step(self) -> None:
            for each in own:
                each.step()

    strategy = rw.distribute.ParameterServerStrategy()
    shared = Net(collection(strategy, **table))
    optimizer = wrapped(make, shared, strategy)
    assert len(list(shared.embeddings.parameters())) == 0
    np.testing.assert_allclose(curve(shared, optimizer), curve(alone, Both()), rtol=1e-4)
    assert strategy.global_step == 20  # rows travel with the parameters


def test_several_backward_passes_are_one_update_and_zero_grad_forgets_them() -> None:
    rule = rw.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=0.0)
    strategy = rw.distribute.ParameterServerStrategy()
    bags = collection(strategy, optimizer=rule)
    for _ in range(2):
        bags({"a": torch.tensor([7])})["a"].sum().backward()
    bags.zero_grad()
    for _ in range(2):
        bags({"a": torch.tensor([7])})["a"].sum().backward()
    bags.apply_gradients()
    bags.apply_gradients()  # there are none by now
    with torch.no_grad():
        row = bags({"b": torch.tensor([7])})["b"]
    np.testing.assert_allclose(row.numpy(), np.zeros((1, DIM)), atol=1e-6)  # one step of 1
    assert strategy.global_step == 1


def test_offsets_weights_and_sequences() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    table = emb.TableConfig("t", DIM, combiner="sum", initializer=rw.Initializer("ones"))
    features = [emb.FeatureConfig("a", table), emb.FeatureConfig("s", table, 3)]
    bags = rw.training.torch.EmbeddingBagCollection(features, rw.optimizers.SGD(1.0), strategy)
    keyed = rw.training.torch.KeyedJaggedTensor(
        ["a", "s", "unknown"],
        torch.arange(9),
        torch.arange(9.0),
        offsets=torch.tensor([0, 2, 3, 5, 6, 7, 9]),
    )
    rows = bags(keyed)
    assert rows.keys() == ["a", "s"]
    assert rows.length_per_key() == [DIM, 3 * DIM]
    assert rows.values().shape == (2, 4 * DIM)
    np.testing.assert_array_equal(rows["a"].detach()[:, 0], [0 + 1, 2])
    np.testing.assert_array_equal(rows["s"].detach()[:, :, 0], [[3, 4, 0], [5, 0, 0]])
    plain = emb.Ragged(torch.tensor([5, 6, 7]), offsets=torch.tensor([0, 1, 3]))
    found = bags({"a": plain}, {"a": emb.Ragged(np.ones(3) * 2, offsets=[0, 1, 3])})["a"]
    np.testing.assert_array_equal(found.detach()[:, 0], [2, 4])


def test_a_grad_scaler_is_taken_out_and_a_skipped_step_trains_nothing() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    net = Net(collection(strategy))
    optimizer = wrapped(sgd, net, strategy)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(factor: float) -> Any:
        optimizer.zero_grad()
        scaler.scale(loss_of(net, jagged()) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        return net(jagged()).detach().numpy()

    first = net(jagged()).detach().numpy()
    np.testing.assert_array_equal(step(float("inf")), first)
    after = step(1.0)
    plain_strategy = rw.distribute.ParameterServerStrategy()
    plain = Net(collection(plain_strategy))
    curve(plain, wrapped(sgd, plain, plain_strategy), 1)
    np.testing.assert_allclose(after, plain(jagged()).detach().numpy(), rtol=1e-5)
    loss_of(net, jagged()).backward()
    scaler.scale(loss_of(net, jagged())).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(rw.errors.ConfigurationError, match="unscale_"):
        scaler.step(optimizer)


def test_gradients_that_no_step_applies_are_refused_in_the_end() -> None:
    bags = collection(rw.distribute.ParameterServerStrategy())
    ids = {"a": torch.tensor([1])}
    with torch.no_grad():
        assert not bags(ids)["a"].requires_grad
    for _ in range(1024):
        bags(ids)["a"].sum().backward()
    one_more = bags(ids)["a"].sum()
    with pytest.raises(rw.errors.ConfigurationError, match="module=module"):
        one_more.backward()


def test_tables_of_another_strategy_and_wrong_lengths_are_refused() -> None:
    net = Net(collection(rw.distribute.ParameterServerStrategy()))
    with pytest.raises(rw.errors.ConfigurationError, match="another strategy"):
        wrapped(sgd, net, rw.distribute.ParameterServerStrategy())
    keyed = rw.training.torch.KeyedJaggedTensor
    with pytest.raises(ValueError, match="3 lengths for 2 keys"):
        keyed(["a", "b"], torch.arange(3), lengths=torch.tensor([1, 1, 1]))
    with pytest.raises(ValueError, match="3 ids and 2 weights"):
        keyed(["a"], torch.arange(3), torch.ones(2), lengths=torch.tensor([3]))


def test_two_workers_train_one_table() -> None:
    def program() -> float:
        strategy = rw.distribute.ParameterServerStrategy()
        net = Net(collection(strategy))
        optimizer = wrapped(sgd, net, strategy)
        curve(net, optimizer, 15)
        strategy.barrier()
        optimizer.refresh()
        return float(loss_of(net, jagged()).item())

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        chief, worker = cluster.run(program).values()
    assert chief == pytest.approx(worker, rel=1e-5)
    assert chief < 0.5


def test_rows_that_are_looked_up_ahead_train_the_same() -> None:
    def curve(count: int) -> list[float]:
        strategy = rw.distribute.ParameterServerStrategy()
        net = Net(collection(strategy))
        own = torch.optim.SGD(net.parameters(), 0.02)
        optimizer = rw.training.torch.DistributedOptimizer(own, strategy, module=net)
        batches = [jagged() for _ in range(5)]
        found = []
        ahead = net.embeddings.look_ahead(batches, lambda batch: batch, count=count or 1)
        for batch in ahead if count else batches:
            optimizer.zero_grad()
            loss = ((net(batch) - torch.from_numpy(Y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert curve(2) == curve(0)
