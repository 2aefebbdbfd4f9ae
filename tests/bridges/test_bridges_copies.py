"""A dense gradient is handed to the session in the framework's own memory, and copied once there.

Two counts: the addresses of the arrays that the session is given are those of the framework's
gradients; and what a step allocates, in the worker and in a ps in the same process, is less than a
tenth of the gradients. PyTorch and JAX allocate outside of what Python traces, so their own memory
is not in it. The one copy goes into a segment that is there already, or into the connection.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.sharded import through_a_session
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Step
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute.runtime import ClusterRuntime
from ropewalk.net.shared_memory import unavailable
from ropewalk.server.ps.server import PsServer

pytestmark = pytest.mark.bridges

SHAPE = (1024, 1024)
BYTES = 4 * 1024 * 1024


@pytest.fixture
def here() -> Iterator[Any]:
    """The servers are in the program's process, and called through a session."""
    strategy: Any = through_a_session()
    yield strategy
    strategy.extended.runtime.session.close()


@pytest.fixture
def there() -> Iterator[Any]:
    """They are reached over a connection, with shared memory."""
    if unavailable():
        pytest.skip(f"no shared memory: {unavailable()}")
    server = PsServer(TaskId("ps", 0), Settings())
    server.start("127.0.0.1:0")
    who = Incarnation(TaskId("worker", 0), 1)
    peer = RemotePs(server.task, f"127.0.0.1:{server.port}", who, Settings())
    session = ParameterSession([peer], who, Settings())
    session.connect()
    alone = rw.distribute.ParameterServerStrategy().extended.runtime
    runtime = ClusterRuntime(alone.task, Settings(), session)
    yield rw.distribute.ParameterServerStrategy(runtime=runtime)
    session.close()
    server.stop(grace_s=0)


def jax_step(strategy: Any) -> tuple[Callable[[], dict[str, int]], Callable[[], None]]:
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    params = {"b": jax.numpy.zeros(7), "w": jax.numpy.zeros(SHAPE)}
    state = rw.training.jax.TrainState(params, optax.adam(1e-3), strategy)
    compute = jax.jit(jax.grad(lambda p: (p["w"] + 1).sum() * (p["b"] + 1).sum()))
    gradients: dict[str, Any] = {}

    def backward() -> dict[str, int]:
        gradients.update(jax.block_until_ready(compute(state.params)))
        return {name: each.unsafe_buffer_pointer() for name, each in gradients.items()}

    return backward, lambda: state.apply_gradients(gradients)


def torch_step(strategy: Any) -> tuple[Callable[[], dict[str, int]], Callable[[], None]]:
    torch: Any = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.b = torch.nn.Parameter(torch.zeros(7))
    module.w = torch.nn.Parameter(torch.zeros(SHAPE))
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module)

    def backward() -> dict[str, int]:
        optimizer.zero_grad()
        ((module.w + 1).sum() * (module.b + 1).sum()).backward()
        return {name: each.grad.data_ptr() for name, each in module.named_parameters()}

    return backward, optimizer.step


@pytest.mark.parametrize("place", ["here", "there"])
@pytest.mark.parametrize("make", [jax_step, torch_step], ids=["jax", "torch"])
def test_no_copy_is_made_of_a_dense_gradient_but_the_one_into_the_session(
    place: str,
    make: Callable[[Any], Any],
    request: pytest.FixtureRequest,
    calls: Calls,
) -> None:
    strategy = request.getfixturevalue(place)
    backward, update = make(strategy)
    session = strategy.extended.runtime.session
    for _ in range(6):  # buffers of values, the segment, compiled functions
        backward()
        update()
    handed_over: dict[str, int] = {}

    def note(step: Step) -> None:
        values = step.writes[0].values
        handed_over.update({name: np.asarray(v).ctypes.data for name, v in values.items()})

    calls.before(session, "begin", note)
    tracemalloc.start()
    try:
        for _ in range(3):
            addresses = backward()
            pushed, at_first = session.counters.pushed, tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            update()
            allocated = tracemalloc.get_traced_memory()[1] - at_first
            assert handed_over == addresses
            assert session.counters.pushed - pushed == BYTES + 7 * 4  # each byte once
            assert allocated < BYTES / 10
    finally:
        tracemalloc.stop()


def test_a_step_of_pytorch_alone_copies_nothing_large() -> None:
    """The gradient and the parameter are read and written where they are."""
    strategy = rw.distribute.ParameterServerStrategy()
    backward, update = torch_step(strategy)
    counters = strategy.extended.runtime.session.counters
    for _ in range(3):
        backward()
        update()
    pushed = counters.pushed
    tracemalloc.start()
    try:
        backward()
        tracemalloc.reset_peak()
        at_first = tracemalloc.get_traced_memory()[0]
        update()
        assert tracemalloc.get_traced_memory()[1] - at_first < BYTES / 10
    finally:
        tracemalloc.stop()
    assert strategy.extended.runtime.session.counters.pushed == pushed
    assert strategy.global_step == 4
