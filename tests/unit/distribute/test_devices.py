"""Devices and their names, and arrays of any framework taken as they are, without a copy."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.late import Late
from helpers.strict_cupy import played_gpus
from ropewalk.core.arrays.any_framework import as_array, is_on_gpu, namespace_of, to_host
from ropewalk.core.arrays.dtypes import BFLOAT16
from ropewalk.distribute import (
    CentralStorageStrategy,
    Mirrored,
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
)
from ropewalk.distribute.base.devices import (
    HOST,
    canonical,
    check_exists,
    compute_devices,
    current_device,
    device_of,
    on_device,
    physical_gpu,
    place,
)

jax, jnp = Late("jax"), Late("jax.numpy")

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def own_devices(no_gpus: None) -> Iterator[None]:
    """A machine without a GPU, and one CPU device afterwards."""
    yield
    rw.config.set_logical_cpu_devices(1)
    rw.config.set_logical_gpu_devices(None)


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("CPU", "/device:CPU:0"),
        ("cpu:0", "/device:CPU:0"),
        ("CPU:12", "/device:CPU:12"),
        ("/cpu:1", "/device:CPU:1"),
        ("/CPU:1", "/device:CPU:1"),
        ("device:CPU:1", "/device:CPU:1"),
        ("/device:CPU:1", "/device:CPU:1"),
        ("/device:cpu:1", "/device:CPU:1"),
        ("GPU:0", "/device:GPU:0"),
        ("gpu", "/device:GPU:0"),
        ("/gpu:3", "/device:GPU:3"),
        ("/device:gpu:3", "/device:GPU:3"),
        ("/device:GPU:03", "/device:GPU:3"),
        ("/job:worker/replica:0/task:1/device:GPU:2", "/device:GPU:2"),
        ("/job:localhost/replica:0/task:0/cpu:0", "/device:CPU:0"),
    ],
    ids=lambda value: value,
)
def test_a_device_is_named_in_any_form_tensorflow_takes(name: str, device: str) -> None:
    assert canonical(name) == device
    assert canonical(device) == device


@pytest.mark.parametrize(
    "name",
    ["", "TPU:0", "XPU", "CPU:", "CPU:x", "CPU:-1", "CPU:0:1", "/job:ps/task:0", "GPU0", "cpus"],
    ids=repr,
)
def test_what_names_no_device_is_an_error_that_shows_how_they_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no device; .*'CPU:0' and 'GPU:1'"):
        canonical(name)


@pytest.mark.parametrize("name", [None, 0, ["CPU:0"]], ids=repr)
def test_a_device_is_named_by_a_string(name: Any) -> None:
    with pytest.raises(ValueError, match="is no device"):
        canonical(name)


# -- what there is ---------------------------------------------------------------------------


def test_without_a_gpu_there_is_one_cpu_device() -> None:
    assert rw.config.list_logical_devices() == [HOST]
    assert rw.config.list_compute_devices() == [HOST]


def test_the_cpu_is_split_into_logical_devices() -> None:
    rw.config.set_logical_cpu_devices(3)
    names = [f"/device:CPU:{i}" for i in range(3)]
    assert rw.config.list_logical_devices() == rw.config.list_logical_devices("CPU") == names
    assert compute_devices() == names


def test_devices_are_listed_by_type_in_any_case(gpus_seen: Callable[[int], None]) -> None:
    gpus_seen(2)
    assert rw.config.list_logical_devices("gpu") == ["/device:GPU:0", "/device:GPU:1"]
    assert rw.config.list_logical_devices() == [HOST, "/device:GPU:0", "/device:GPU:1"]
    assert rw.config.list_logical_devices("TPU") == []


def test_replicas_run_on_the_gpus_if_there_are_any(gpus_seen: Callable[[int], None]) -> None:
    rw.config.set_logical_cpu_devices(4)
    gpus_seen(2)
    assert compute_devices() == ["/device:GPU:0", "/device:GPU:1"]


def test_a_gpu_is_split_into_logical_devices_in_turn(gpus_seen: Callable[[int], None]) -> None:
    gpus_seen(2)
    rw.config.set_logical_gpu_devices(5)
    assert len(compute_devices()) == 5
    assert [physical_gpu(device) for device in compute_devices()] == [0, 1, 0, 1, 0]
    rw.config.set_logical_gpu_devices(None)
    assert compute_devices() == ["/device:GPU:0", "/device:GPU:1"]


def test_logical_gpu_devices_need_a_gpu() -> None:
    rw.config.set_logical_gpu_devices(2)
    assert rw.config.list_logical_devices("GPU") == []


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_at_least_one_device(count: int) -> None:
    with pytest.raises(ValueError, match=f"at least one logical CPU device is needed, got {count}"):
        rw.config.set_logical_cpu_devices(count)
    with pytest.raises(ValueError, match=f"at least one logical GPU device is needed, got {count}"):
        rw.config.set_logical_gpu_devices(count)


def test_a_device_that_is_not_here_is_an_error_that_says_which_are() -> None:
    rw.config.set_logical_cpu_devices(2)
    assert check_exists("/cpu:1") == "/device:CPU:1"
    with pytest.raises(
        ValueError,
        match=r"no device 'cpu:2' here; there are /device:CPU:0, /device:CPU:1\. "
        r".*set_logical_cpu_devices",
    ):
        check_exists("cpu:2")


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneDeviceStrategy("GPU:0"),
        lambda: MirroredStrategy(["CPU:0", "GPU:0"]),
        lambda: CentralStorageStrategy(["GPU:0"]),
        lambda: CentralStorageStrategy(parameter_device="GPU:0"),
    ],
    ids=["one-device", "mirrored", "central-compute", "central-parameters"],
)
def test_a_strategy_wants_devices_that_are_here(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="no device 'GPU:0' here"):
        make()


# -- working for a device --------------------------------------------------------------------


def test_devices_nest_and_are_left_again() -> None:
    assert current_device() == HOST
    with rw.device("cpu:1") as outer:
        assert outer == current_device() == "/device:CPU:1"
        with rw.device("/device:cpu:2"):
            assert current_device() == "/device:CPU:2"
        assert current_device() == "/device:CPU:1"
        with pytest.raises(KeyError), on_device("CPU:3"):
            raise KeyError("mine")
        assert current_device() == "/device:CPU:1"
    assert current_device() == HOST


def test_a_device_is_a_threads_own() -> None:
    with rw.device("cpu:1"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_device).result(5) == HOST


@pytest.mark.parametrize("name", ["/device:TPU:0", "nonsense"])
def test_a_name_of_no_device_is_refused_before_it_is_entered(name: str) -> None:
    with pytest.raises(ValueError, match="is no device"):
        rw.device(name)


@pytest.mark.parametrize("name", ["GPU:0", "/device:gpu:0"])
def test_a_gpu_without_cupy_is_an_error_that_leaves_nothing_behind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"ropewalk\[gpu\]"):
        rw.device(name).__enter__()
    assert current_device() == HOST


# -- arrays ----------------------------------------------------------------------------------


class OnlyDLPack:
    """An array of a framework that speaks DLPack and nothing else."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class ShyDLPack(OnlyDLPack):
    """One whose DLPack refuses, as of memory that wants a gradient; the array protocol works."""

    def __init__(self, array: Array, error: type[Exception]) -> None:
        super().__init__(array)
        self.error = error

    def __dlpack__(self, **options: Any) -> Any:
        raise self.error("not this one")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.array


class TensorOnGpu(OnlyDLPack):
    """A tensor of PyTorch on a GPU: no array protocol, and ``cpu``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def cpu(self) -> OnlyDLPack:
        return OnlyDLPack(self.array)


class ArrayOnGpu(ShyDLPack):
    """An array of JAX on a GPU: the array protocol copies."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class OfGraph(OnlyDLPack):
    """A tensor of PyTorch that wants a gradient."""

    requires_grad = True

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient")

    def detach(self) -> OnlyDLPack:
        return OnlyDLPack(self.array)


class OnlyInterface:
    """An array of a framework that speaks NumPy's array interface."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


MAKERS: dict[str, Callable[[Array], Any]] = {
    "numpy": lambda array: array,
    "dlpack": OnlyDLPack,
    "array-interface": OnlyInterface,
    "dlpack-refuses-buffer": lambda array: ShyDLPack(array, BufferError),
    "dlpack-refuses-runtime": lambda array: ShyDLPack(array, RuntimeError),
    "wants-gradient": OfGraph,
    "buffer": lambda array: array.data,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_an_array_of_any_framework_shares_its_memory(make: Callable[[Array], Any]) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = make(array)
    for taken in (as_array(given), to_host(given), place(given, HOST)):
        assert isinstance(taken, np.ndarray)
        assert taken.shape == (3, 4)
        assert taken.dtype == np.float32
        assert np.shares_memory(taken, array), "without a copy"
    assert device_of(as_array(given)) == HOST


@pytest.mark.parametrize(
    "make", [TensorOnGpu, lambda array: ArrayOnGpu(array, BufferError)], ids=["torch", "jax"]
)
def test_an_array_on_a_gpu_is_copied_to_the_host_where_there_is_no_cupy(
    make: Callable[[Array], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(to_host(make(array)), array)
    np.testing.assert_array_equal(place(make(array), HOST), array)


@pytest.mark.parametrize(
    "make",
    [TensorOnGpu, lambda array: ArrayOnGpu(array, NotImplementedError)],
    ids=["torch", "jax"],
)
def test_an_array_on_a_gpu_that_cupy_does_not_take_is_copied_to_the_host(
    make: Callable[[Array], Any],
) -> None:
    """As bfloat16 before CuPy 14."""
    array = np.arange(6, dtype=np.float32)
    with played_gpus(1):
        np.testing.assert_array_equal(as_array(make(array)), array)


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[:, 1], np.s_[::-1, ::-1]], ids=str)
def test_a_view_with_strides_is_shared_as_well(view: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    taken = as_array(OnlyDLPack(array[view]))
    np.testing.assert_array_equal(taken, array[view])
    assert np.shares_memory(taken, array)


def test_an_array_of_jax_is_taken_without_a_copy() -> None:
    array = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), jax.devices("cpu")[0])
    taken = as_array(array)
    np.testing.assert_array_equal(taken, [[0, 1, 2], [3, 4, 5]])
    assert taken.__array_interface__["data"][0] == array.unsafe_buffer_pointer()
    assert not taken.flags.writeable, "jax's arrays do not change"


def test_bfloat16_of_jax_is_taken_by_the_array_protocol() -> None:
    taken = as_array(jnp.full(3, 1.5, jnp.bfloat16))
    assert taken.dtype == BFLOAT16
    assert taken.astype(np.float32).tolist() == [1.5] * 3


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(3, np.int64), (2.5, np.float64), (True, np.bool_), ([1, 2], np.int64), (np.float32(1), "f4")],
    ids=["int", "float", "bool", "list", "numpy-scalar"],
)
def test_numbers_and_lists_become_arrays(value: Any, dtype: Any) -> None:
    taken = as_array(value)
    assert isinstance(taken, np.ndarray)
    assert taken.dtype == dtype
    assert taken.tolist() == value


def test_a_mirrored_value_is_the_array_all_have_and_a_per_replica_is_none() -> None:
    array = np.ones(2)
    assert np.shares_memory(as_array(Mirrored([array, array])), array)
    with pytest.raises(ValueError, match="PerReplica of 2 values is no array"):
        as_array(PerReplica([array, array]))


def test_no_array_of_the_host_is_taken_for_a_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """And CuPy is not imported to find out."""
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert not is_on_gpu(np.ones(2))
    assert not is_on_gpu(jnp.ones(2))
    assert namespace_of(np.ones(2)) is np
    assert "cupy" not in sys.modules


@pytest.mark.parametrize("framework", ["jax", "dlpack"])
def test_a_training_step_takes_gradients_of_any_framework(framework: str) -> None:
    """Of JAX: computed and handed on as they are, on every replica."""
    rw.config.set_logical_cpu_devices(2)
    strategy = MirroredStrategy()
    with strategy.scope():
        w = rw.Variable(np.array([1.0, 2.0], np.float32), name="w")
    optimizer = rw.optimizers.SGD(0.5)

    def step(scale: float) -> Any:
        value = w.read_value()
        if framework == "jax":
            gradient = jax.grad(lambda v: (scale * v).sum())(jnp.asarray(value))
        else:
            gradient = OnlyDLPack(np.full(2, scale, np.float32))
        optimizer.apply_gradients([(gradient, w)])
        return gradient

    gradients = strategy.run(step, args=(PerReplica([1.0, 3.0]),))
    assert len(gradients.values) == 2
    np.testing.assert_array_equal(w.numpy(), np.array([1.0, 2.0]) - 0.5 * 4)
    if framework == "jax":
        np.testing.assert_array_equal(strategy.reduce("SUM", gradients), [4, 4])


# -- names with a task -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "/job:ps/task:0", "/job:worker/replica:0/task:1", "/task:3"], ids=repr
)
def test_a_task_without_a_device_changes_no_device(name: str) -> None:
    with rw.device("cpu:1"), rw.device(name) as device:
        assert device == current_device() == "/device:CPU:1"


def test_no_device_at_all_forgets_the_others() -> None:
    with rw.device("cpu:1"), rw.device(None) as device:
        assert device == current_device() == HOST


def test_a_device_of_a_task_is_this_tasks_own() -> None:
    with rw.device("/job:worker/replica:0/task:1/device:CPU:*") as device:
        assert device == HOST


def test_a_function_of_devices_is_refused_as_without_a_graph() -> None:
    with pytest.raises(RuntimeError, match="need a graph"):
        rw.device(lambda op: "cpu:0")  # type: ignore[arg-type]


def test_devices_are_named_alike_wherever_they_are_asked_for() -> None:
    rw.config.set_logical_cpu_devices(2)
    strategy = MirroredStrategy()
    with strategy.scope():
        v = rw.Variable(1.0)
    extended = strategy.extended

    def device() -> str:
        context = rw.distribute.get_replica_context()
        assert context is not None
        return context.devices[0]

    of_replicas = strategy.run(device)
    here = tuple(f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2))
    assert extended.worker_devices == extended.parameter_devices == of_replicas.values == here
    assert tuple(part.device for part in strategy.experimental_local_results(v)) == here
    assert rw.Variable(1.0).device == here[0]
