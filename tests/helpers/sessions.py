"""Sessions of workers with several ps in this process, over transports that fail when told to."""

from typing import Any

import numpy as np

from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Exchange, answered
from ropewalk.cluster.placement import FixedShardsPartitioner
from ropewalk.core.arrays.dtypes import Array, DType
from ropewalk.core.errors import (
    RopewalkError,
)
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import NO_TARGET, Operation, PullTarget, StepRequest
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.store import Store

F32 = np.dtype(np.float32)
PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation
SETTINGS = Settings(join_timeout_s=0.3)


class FaultyTransport(LocalPs):
    """A local transport that fails when it is told to: at ``send`` or at ``receive``."""

    fail_prepare: BaseException | None = None
    fail_send: RopewalkError | None = None
    fail_receive: RopewalkError | None = None
    fail_connect: RopewalkError | None = None
    in_flight = False
    log: list[str]

    def connect(self, timeout_s: float) -> None:
        if self.fail_connect is not None:
            raise self.fail_connect
        super().connect(timeout_s)

    def step(self, request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        if self.fail_prepare is not None:
            raise self.fail_prepare
        exchange = super().step(request, target)
        next(exchange)
        yield
        if self.fail_send is not None:
            raise self.fail_send
        assert not self.in_flight, "the answer to the last step was never read"
        next(exchange)
        self.in_flight = True
        self.log.append(f"send {self.task.index}")
        yield
        self.in_flight = False
        self.log.append(f"receive {self.task.index}")
        result = answered(exchange)
        if self.fail_receive is not None:
            raise self.fail_receive
        return result


class Cluster:
    """Some ps, and workers that reach them."""

    def __init__(self, ps: int = 1) -> None:
        self.stores = [Store(TaskId("ps", i), SETTINGS) for i in range(ps)]
        self.log: list[str] = []

    def session(
        self, index: int = 0, generation: int = 1, settings: Settings = SETTINGS
    ) -> ParameterSession:
        who = Incarnation(TaskId("worker", index), generation)
        transports = []
        for store in self.stores:
            transport = FaultyTransport(store.task, who, settings, store)
            transport.log = self.log
            transports.append(transport)
        return ParameterSession(transports, who, settings)

    def labels(self) -> list[set[str]]:
        """Names of the shards on each ps."""
        return [set(store.counters().labels) for store in self.stores]


def faulty(session: ParameterSession, ps: int) -> FaultyTransport:
    transport = session.peers[ps]
    assert isinstance(transport, FaultyTransport)
    return transport


def variable(name: str, *shape: int, dtype: DType = F32) -> VariableDefinition:
    return VariableDefinition(name, shape, dtype)


def create(
    session: ParameterSession, *variables: VariableDefinition, parts: int = 1, **options: Any
) -> dict[str, Array]:
    """Define variables with random values; returns these."""
    rng = np.random.default_rng(0)
    values = {item.name: rng.standard_normal(item.shape).astype(item.dtype) for item in variables}
    partitioner = FixedShardsPartitioner(parts)
    session.define(variables, values, create=True, partitioner=partitioner, **options)
    return values


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)
