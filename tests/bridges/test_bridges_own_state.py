"""An optimizer on the worker goes on in the next job; what checks need no job, is checked here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # of the first sparse tensor
]


def quadratic(torch: Any, optimizer: Any, parameter: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (parameter - 5).square().sum()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", ["Rprop", "Adafactor", "RMSprop"])
def test_a_job_that_resumes_has_the_state_of_pytorchs_optimizer(name: str, tmp_path: Path) -> None:
    """Rprop's step sizes begin at the rate, Adafactor's state has other shapes than parameters."""
    torch = pytest.importorskip("torch")

    def made(parameter: Any) -> Any:
        return getattr(torch.optim, name)([parameter], lr=0.1)

    def program() -> list[float]:
        strategy = rw.distribute.ParameterServerStrategy()
        parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        optimizer = rw.training.torch.DistributedOptimizer(made(parameter), strategy)
        assert optimizer.worker_reason
        return quadratic(torch, optimizer, parameter, 3)

    parts: list[float] = []
    for _ in range(2):
        with rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(tmp_path)) as cluster:
            parts += next(iter(cluster.run(program).values()))
    alone = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    np.testing.assert_allclose(parts, quadratic(torch, made(alone), alone, 6), rtol=1e-6)
    exported = rw.training.export(tmp_path, tmp_path / "model.safetensors")
    assert exported == ["parameter_0"]  # a model's values, no optimizer's


def test_another_worker_begins_with_the_chiefs_state_and_pushes_none_of_its_own(
    tmp_path: Path,
) -> None:
    """Two workers in the first job, two in the next: both go on with what the chief had."""
    torch = pytest.importorskip("torch")

    def program() -> tuple[bool, float, float]:
        strategy = rw.distribute.ParameterServerStrategy()
        parameter = torch.nn.Parameter(torch.zeros(3))
        inner = torch.optim.SGD([parameter], 0.1, momentum=0.5)
        optimizer = rw.training.torch.DistributedOptimizer(inner, strategy, deltas="always")
        strategy.barrier()
        buffer = inner.state[parameter].get("momentum_buffer") if inner.state else None
        first = 0.0 if buffer is None else float(buffer[0])
        strategy.barrier()
        for _ in range(2):
            parameter.grad = torch.full((3,), 1.0 if strategy.is_chief else 100.0)
            optimizer.step()
        return strategy.is_chief, first, float(inner.state[parameter]["momentum_buffer"][0])

    def run() -> dict[bool, tuple[float, float]]:
        with rw.testing.LocalCluster(workers=1, ps=1, model_dir=str(tmp_path)) as cluster:
            return {chief: (a, b) for chief, a, b in cluster.run(program).values()}

    assert run() == {True: (0, 1.5), False: (0, 150)}
    again = run()
    assert again[True] == (1.5, 1.875)  # 0.5 · (0.5 · 1.5 + 1) + 1
    assert again[False][0] == 1.5


def test_a_program_restores_an_optimizers_state_with_its_bridge(tmp_path: Path) -> None:
    optax = pytest.importorskip("optax")

    def made() -> Any:
        start = {"w": np.zeros(3, np.float32)}
        return rw.training.jax.TrainState(
            start, optax.MultiSteps(optax.adam(0.1), 2), rw.distribute.MirroredStrategy()
        )

    def step(state: Any) -> None:
        state.apply_gradients({"w": state.params["w"] - 5})

    first, second = made(), made()
    for _ in range(3):  # in the middle of an accumulation
        step(first)
    step(second)
    path = rw.train.Checkpoint(state=first).save(str(tmp_path / "mine"))
    rw.train.Checkpoint(state=second).restore(path).assert_consumed()
    for state in (first, second):
        step(state)
    assert int(second.opt_state.gradient_step) == 2
    np.testing.assert_array_equal(first.params["w"], second.params["w"])


def test_an_optimizer_whose_state_cannot_be_told_trains_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch = pytest.importorskip("torch")

    class Odd(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["note"] = "seen"
            return super().step(closure)

    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = rw.training.torch.DistributedOptimizer(
        Odd([parameter], 0.1), rw.distribute.ParameterServerStrategy()
    )
    losses = quadratic(torch, optimizer, parameter, 3)
    assert losses[2] < losses[0]
    assert "state of Odd is not in the job's checkpoints" in caplog.text


class Copies:
    """The seam of a device: tensors that count as elsewhere, and what was done in which order."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.done = torch, []  # type: ignore[var-annotated]

    def on_host(self, tensor: Any) -> bool:
        return not hasattr(tensor, "elsewhere")

    def allocate(self, num_bytes: int, device: Any) -> Any:
        self.done.append(("allocate", num_bytes))
        return self.torch.empty(num_bytes, dtype=self.torch.uint8)

    def synchronize(self, device: Any) -> None:
        self.done.append(("synchronize", device.type))


def test_an_optimizer_without_capturable_has_a_state_on_a_machine_with_cuda() -> None:
    """There ``step`` of a copied optimizer asks its groups for ``capturable``, which some lack."""
    torch = pytest.importorskip("torch")
    from ropewalk.annexes.torch_bridge.state import TorchState

    class OnCuda(torch.optim.Adafactor):  # type: ignore[misc, name-defined]
        """As torch checks it before a step on CUDA."""

        def step(self, closure: Any = None) -> Any:
            if not getattr(self, "_warned_capturable_if_run_uncaptured", False):
                assert all(group["capturable"] for group in self.param_groups)
            return super().step(closure)

    parameters = {"w": torch.nn.Parameter(torch.ones(4, 3))}
    state = TorchState(OnCuda(parameters.values(), 0.01), parameters)
    assert {"w/step", "w/row_var", "w/col_var"} <= state.entries.keys()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_pinned_memory_are_powers_of_two_and_hardly_larger_than_what_they_hold(
    seed: int,
) -> None:
    """PyTorch would round each of them up; a block for each array took up to twice the bytes."""
    pytest.importorskip("torch")
    from ropewalk.annexes.torch_bridge.host_copies import blocks_of

    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in 2 ** rng.uniform(2, 24, size=rng.integers(1, 200))]
    blocks = blocks_of([*sizes, 0])
    assert sorted(i for _, numbers in blocks for i in numbers) == list(range(len(sizes) + 1))
    for num_bytes, numbers in blocks:
        assert num_bytes & (num_bytes - 1) == 0
        assert sum(-(-[*sizes, 0][i] // 64) * 64 for i in numbers) <= num_bytes
    held = sum(num_bytes for num_bytes, _ in blocks)
    assert held <= sum(sizes) + 2 * max(sizes) + 64 * len(sizes) + 4096


def test_gradients_of_a_device_are_copied_into_one_kept_block_and_waited_for_once() -> None:
    torch = pytest.importorskip("torch")
    from ropewalk.annexes.torch_bridge.host_copies import HostCopies

    seam = Copies(torch)
    copies = HostCopies(seam.on_host, seam.allocate, seam.synchronize)
    given = {
        "plain": torch.ones(4, 3),
        "bfloat16": torch.ones(5, dtype=torch.bfloat16),
        "channels last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([2.0]).expand(6),
    }
    for tensor in given.values():
        tensor.elsewhere = True
    given["here"] = torch.ones(2)
    given["rows"] = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 3), (4, 3))
    found = [copies.gradients(given) for _ in range(2)]
    assert seam.done == [
        ("allocate", 4096),
        ("synchronize", "cpu"),
        ("synchronize", "cpu"),
    ]
    for name in ("plain", "channels last", "expanded", "here"):
        np.testing.assert_array_equal(found[1][name], given[name].numpy())
    assert found[0]["plain"].ctypes.data == found[1]["plain"].ctypes.data  # type: ignore[union-attr]
    assert found[1]["here"].ctypes.data == given["here"].data_ptr()  # type: ignore[union-attr]
    assert found[1]["bfloat16"].dtype.name == "bfloat16"
    assert list(found[1]["rows"].indices) == [1, 1]  # type: ignore[union-attr]
    given = {"plain": torch.zeros(4, 3), "more": torch.ones(2000)}
    for tensor in given.values():
        tensor.elsewhere = True
    more = copies.gradients(given)
    assert seam.done[3:] == [("allocate", 8192), ("synchronize", "cpu")], "for what is new"
    assert found[0]["plain"].ctypes.data == more["plain"].ctypes.data  # type: ignore[union-attr]
    np.testing.assert_array_equal(more["plain"], 0)


@pytest.mark.gpu("torch")
def test_a_gpus_parameters_train_as_the_hosts() -> None:
    torch = pytest.importorskip("torch")
    found = []
    for device in ("cpu", "cuda"):
        parameter = torch.nn.Parameter(torch.zeros(1000, device=device))
        optimizer = rw.training.torch.DistributedOptimizer(
            torch.optim.Adam([parameter], 0.1), rw.distribute.ParameterServerStrategy()
        )
        found.append(quadratic(torch, optimizer, parameter, 5))
        assert parameter.device.type == device
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_copies_of_all_gradients_start_before_the_first_is_waited_for() -> None:
    pytest.importorskip("jax")
    from ropewalk.annexes.jax_bridge.arrays import start_copies

    done: list[str] = []

    class OnDevice:
        def __init__(self, name: str, *, deleted: bool = False) -> None:
            self.name, self.is_deleted = name, lambda: deleted

        def copy_to_host_async(self) -> None:
            done.append(self.name)

    arrays = [OnDevice("a"), np.ones(2), OnDevice("donated", deleted=True), OnDevice("b")]
    start_copies(arrays, ahead=True)
    assert done == ["a", "b"]
    start_copies(arrays, ahead=False)
    assert done == ["a", "b"]
