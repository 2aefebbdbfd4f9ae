"""A ps and workers of it over every connection there is: what the tests of sessions with a ps
share.
"""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import PsPeer, answered
from ropewalk.core.arrays.dtypes import Array, DType, as_bytes
from ropewalk.core.arrays.gather_buffer import GatherBuffer
from ropewalk.core.backoff import attempts
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import (
    Encoding,
    HeldShard,
    LayoutEntry,
    Operation,
    PullTarget,
    PushResult,
    StepRequest,
    WireLayout,
)
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.net.shared_memory import unavailable
from ropewalk.server.ps.server import PsServer
from ropewalk.server.ps.store import Store

from .faulty_stream import Faults
from .tls_files import tls_settings, with_tls
from .waiting import scaled

PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation
F32 = np.dtype(np.float32)
PS = TaskId("ps", 0)

# What a worker's settings are so that its session goes over each connection of one machine.
_SETTINGS: dict[str, dict[str, Any]] = {
    "shm": {},
    "unix": {},  # over a stream that passes no files, memory cannot be shared
    "tcp": {"shared_memory": False},
    "tls": {"shared_memory": False, **tls_settings("worker", None)},
    "grpc": {"shared_memory": False, "tcp_sessions": False},
}
REMOTE = [kind for kind in _SETTINGS if kind in ("tcp", "tls", "grpc") or not unavailable()]
CONNECTIONS = ["local", *REMOTE]

# Messages of a tunnel smaller than most payloads; far shorter timeouts than a user's.
SETTINGS = Settings(
    chunk_bytes=64 * 1024,
    request_timeout_s=10.0,
    reconnect_timeout_s=5.0,
    join_timeout_s=5.0,
    max_step_bytes=64 * 1024**2,
)


def faults_on(kind: str) -> Faults:
    """The seam of a peer that is to use this connection; without a fault yet."""
    return Faults(files="refuse" if kind == "unix" else "pass")


def worker_settings(kind: str, settings: Settings = SETTINGS, **changes: Any) -> Settings:
    """Those of a worker that is to use this connection."""
    return settings.model_copy(update={**_SETTINGS.get(kind, {}), **changes})


def remote(
    kind: str,
    address: str,
    who: Incarnation,
    settings: Settings,
    *,
    faults: Faults | None = None,
    task: TaskId = PS,
) -> RemotePs:
    """A peer that uses this connection, not connected yet."""
    return RemotePs(task, address, who, settings, (faults or faults_on(kind)).wrap)


class Ps:
    """One ps of this process, and the workers that reach it over one kind of connection.

    Args:
        kind: One of :data:`CONNECTIONS`.
        index: The ps's.
        changes: To the settings of both sides.
    """

    def __init__(self, kind: str, index: int = 0, **changes: Any) -> None:
        self.kind = kind
        self.task = TaskId("ps", index)
        self.settings = SETTINGS.model_copy(update=changes)
        self.server: PsServer | None = None
        if kind == "local":
            self.store = Store(self.task, self.settings)
        else:
            if kind == "tls":
                self.settings = with_tls(self.settings, "ps", index)
            self.server = PsServer(self.task, self.settings)
            self.server.start("127.0.0.1:0")
            self.store = self.server.store
        self._peers: list[PsPeer] = []

    @property
    def address(self) -> str:
        """Where it listens."""
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    def peer(
        self,
        index: int = 0,
        generation: int = 1,
        *,
        faults: Faults | None = None,
        **changes: Any,
    ) -> PsPeer:
        """A peer of a worker, not connected yet. Closed with this ps."""
        who = Incarnation(TaskId("worker", index), generation)
        peer: PsPeer
        if self.kind == "local":
            peer = LocalPs(self.task, who, self.settings, self.store)
        else:
            settings = worker_settings(self.kind, self.settings, **changes)
            peer = remote(self.kind, self.address, who, settings, faults=faults, task=self.task)
        self._peers.append(peer)
        return peer

    def worker(
        self,
        index: int = 0,
        generation: int = 1,
        *,
        faults: Faults | None = None,
        **changes: Any,
    ) -> "Worker":
        """A connected worker."""
        peer = self.peer(index, generation, faults=faults, **changes)
        for attempt in attempts(timeout_s=scaled(10.0), stop=threading.Event()):
            with attempt:  # a gRPC channel gives up after a second, which a busy machine may need
                peer.connect(scaled(5.0))
        return Worker(peer)

    def leave(self, worker: "Worker") -> None:
        """Close a worker's connection, and keep nothing of it here."""
        worker.peer.close()
        self._peers.remove(worker.peer)

    def close(self) -> None:
        """End it, and its peers."""
        for peer in self._peers:
            peer.close()
        if self.server is not None:
            self.server.stop(grace_s=0)


def open_session(
    *servers: Ps, index: int = 0, generation: int = 1, faults: Faults | None = None, **changes: Any
) -> ParameterSession:
    """A connected session of a worker with several ps."""
    who = Incarnation(TaskId("worker", index), generation)
    peers = [ps.peer(index, generation, faults=faults, **changes) for ps in servers]
    session = ParameterSession(peers, who, servers[0].settings)
    session.connect()
    return session


# -- steps -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Put:
    """One entry of a push."""

    shard: ShardDefinition
    operation: Operation
    values: Array
    rows: Array | None = None
    wire: DType | None = None
    elements: bool = False

    @property
    def entry(self) -> LayoutEntry:
        encoding = _encoding(self.rows)
        if self.elements:
            encoding = Encoding.ELEMENTS
        shard = self.shard
        return LayoutEntry(shard.variable.name, shard.part, self.operation, encoding, self.wire)


@dataclass(frozen=True)
class Get:
    """One entry of a pull."""

    shard: ShardDefinition
    rows: Array | None = None
    wire: DType | None = None

    @property
    def entry(self) -> LayoutEntry:
        shard = self.shard
        size = 0 if self.rows is not None else self.room().nbytes
        return LayoutEntry(
            shard.variable.name, shard.part, PULL, _encoding(self.rows), self.wire, size
        )

    def room(self) -> Array:
        """Where it may land."""
        shape = self.shard.shape
        if self.rows is not None:
            shape = (self.rows.size, *shape[1:])
        return np.empty(shape, self.wire or self.shard.variable.dtype)


def _encoding(rows: Array | None) -> Encoding:
    return Encoding.DENSE if rows is None else Encoding.ROWS


def vector(name: str = "w", *shape: int, dtype: DType = F32) -> VariableDefinition:
    """A variable, of three elements if nothing else is said."""
    return VariableDefinition(name, shape or (3,), dtype)


def put(
    variable: VariableDefinition | ShardDefinition,
    operation: Operation,
    values: Any,
    rows: Any = None,
    *,
    wire: DType | None = None,
    elements: bool = False,
) -> Put:
    """Values for a variable; a number stands for as many as it has."""
    shard = ShardDefinition(variable) if isinstance(variable, VariableDefinition) else variable
    dtype = wire or shard.variable.dtype
    numbers = None if rows is None else np.asarray(rows, np.int64)
    if np.isscalar(values):
        values = np.full(shard.shape, values)
    array = np.ascontiguousarray(np.asarray(values).astype(dtype))
    return Put(shard, operation, array.reshape(np.shape(values)), numbers, wire, elements)


def get(
    variable: VariableDefinition | ShardDefinition, rows: Any = None, *, wire: DType | None = None
) -> Get:
    """What is to be pulled."""
    shard = ShardDefinition(variable) if isinstance(variable, VariableDefinition) else variable
    return Get(shard, None if rows is None else np.asarray(rows, np.int64), wire)


class Worker:
    """Drives a peer: numbers pushes, keeps layouts, cuts and joins arrays."""

    def __init__(self, peer: PsPeer) -> None:
        self.peer = peer
        self.sequence = 0
        self.result = PushResult(0, 0, duplicate=False)
        self._layouts: dict[tuple[LayoutEntry, ...], WireLayout] = {}
        self._ids = itertools.count(1)

    def define(self, *variables: VariableDefinition, create: bool = True) -> list[HeldShard]:
        return self.peer.define([ShardDefinition(each) for each in variables], create=create)

    def create(self, *variables: VariableDefinition) -> None:
        """Define variables, and fill them with zeros."""
        self.define(*variables)
        self.push(*(put(each, ASSIGN, 0) for each in variables))

    def request(
        self, puts: Sequence[Put] = (), gets: Sequence[Get] = (), **fields: Any
    ) -> StepRequest:
        given: dict[str, Any] = {
            "sequence": self.sequence + 1 if puts else 0,
            "push": self.layout([each.entry for each in puts]),
            "pull": self.layout([each.entry for each in gets]),
            "push_rows": [each.rows for each in puts if each.rows is not None],
            "pull_rows": [each.rows for each in gets if each.rows is not None],
            "values": [GatherBuffer([p.values], p.values.dtype, p.values.nbytes) for p in puts],
        }
        return StepRequest(**{**given, **fields})

    def layout(self, entries: Sequence[LayoutEntry]) -> WireLayout | None:
        """The same one for the same entries."""
        if not entries:
            return None
        key = tuple(entries)
        if key not in self._layouts:
            self._layouts[key] = WireLayout(next(self._ids), key)
        return self._layouts[key]

    def exchange(
        self,
        request: StepRequest,
        into: Sequence[Array] = (),
        previous: Sequence[Array] | None = None,
    ) -> PushResult:
        """Send a step and receive it."""
        targets = [as_bytes(array) for array in into]
        old: Sequence[memoryview] | None = None
        if previous is not None:
            old = targets if previous is into else [as_bytes(array) for array in previous]
        self.result = answered(self.peer.step(request, PullTarget(targets, old)))
        self.sequence = max(self.sequence, request.sequence)
        return self.result

    def step(self, puts: Sequence[Put], gets: Sequence[Get], **fields: Any) -> list[Array]:
        out = [each.room() for each in gets]
        self.exchange(self.request(puts, gets, **fields), out)
        return out

    def push(self, *puts: Put, **fields: Any) -> PushResult:
        self.step(puts, (), **fields)
        return self.result

    def pull(self, *gets: Get) -> list[Array]:
        return self.step((), gets)

    def value(self, variable: VariableDefinition) -> Array:
        [array] = self.pull(get(variable))
        return array
