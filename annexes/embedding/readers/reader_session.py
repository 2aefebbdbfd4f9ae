"""A reader's sessions with the ps of a running job, which it finds by the chief.

A reader belongs to no cluster: it registers nowhere, so nothing waits for it, and no job goes on
for its sake. It asks the chief once where the ps are, follows the leaders of shares as workers do,
and looks rows up in steps that push nothing. Beside these steps it asks which rows changed, and for
rows of one moment (``annexes/embedding/server/readers.py``).
"""

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress

import numpy as np

from ....client.chief.calls import ChiefClient
from ....client.ps.definer import PlacedVariable
from ....client.ps.distinct_rows import DistinctRows, DistinctRowsCache, Rows
from ....client.ps.locating import LeaderWatch
from ....client.ps.parameter_session import ParameterSession
from ....client.ps.remote_ps import RemotePs
from ....cluster.access import READER, principal_of_task
from ....cluster.replication.configuration import first_leaders
from ....cluster.spec import PS
from ....core.arrays.dtypes import Array, as_bytes, row_shape, size_of
from ....core.backoff import Backoff, attempts
from ....core.errors import (
    CutVoidError,
    JoinTimeoutError,
    PeerLostError,
    RefusedError,
    RopewalkError,
)
from ....core.rules.definitions import ShardDefinition, VariableDefinition
from ....core.settings import Settings
from ....core.task import MAX_TASK_INDEX, Incarnation, TaskId
from ....core.wire.error_table import from_detail
from ....core.wire.steps import HeldShard
from ....proto.v1 import session_pb2
from .followed_rows import FollowAnswer, FollowRequest, answer_from_wire, request_to_wire

_ANSWER_S = 5.0
_POLL_S = 0.1
_LEADERS_S = 0.5  # between two questions for the leaders of shares
_CUT_S = 30.0  # the chief retries; a try takes one or two seconds


class ReaderSession:
    """Reads variables and tables of a running job. Thread-safe.

    Args:
        chief: Address of the job's chief, host:port.
        settings: Credentials of the role ``reader``, deadlines and bounds.

    Raises:
        PeerLostError: The chief does not answer within ``join_timeout_s``.
        JoinTimeoutError: A ps does not.
        AccessError: It does not let this reader in.
    """

    _key_bytes = 0  # of answers that say which rows changed

    def __init__(self, chief: str, settings: Settings) -> None:
        # One of many: readers know nothing of each other.
        task = TaskId(READER, secrets.randbelow(MAX_TASK_INDEX + 1))
        self._who = who = Incarnation(task, 1, settings.job_id)
        self._settings = settings
        self._closing = threading.Event()
        self._distinct = DistinctRowsCache(who)
        self._placed: dict[str, PlacedVariable] = {}
        self._chief = ChiefClient(chief, settings, principal_of_task(task, settings.job_id))
        self._leaders = LeaderWatch(self._chief, _LEADERS_S)
        with ExitStack() as opened:
            opened.callback(self._chief.close)
            opened.callback(self._leaders.close)
            addresses = self._find_ps()
            self._leaders.begin(settings.join_timeout_s)
            homes = first_leaders(self._leaders.shares, list(addresses))
            locate, learn = self._leaders.leader_of, self._leaders.learn
            self._peers = [
                RemotePs(ps, addresses[ps], who, settings, locate=locate, share=share, learn=learn)
                for share, ps in homes.items()
            ]
            self._session = ParameterSession(self._peers, who, settings)
            opened.callback(self._session.close)
            for peer in self._peers:
                self._leaders.tell(peer.moved)
            self._session.connect()
            opened.pop_all()

    def _find_ps(self) -> dict[TaskId, str]:
        """Find the ps and their addresses, by index."""
        for attempt in attempts(timeout_s=self._settings.join_timeout_s, stop=self._closing):
            with attempt:
                status = self._chief.status(timeout_s=_ANSWER_S)
        tasks = sorted(status.tasks, key=lambda each: each.task)
        found = {each.task: each.address for each in tasks if each.task.type == PS}
        if not found:
            raise RefusedError(
                f"the job of the chief at {self._chief.address} has no parameter servers, so there "
                "are no tables to read",
                chief=self._chief.address,
            )
        return found

    @property
    def who(self) -> Incarnation:
        """The reader."""
        return self._who

    @property
    def global_step(self) -> int:
        """Global step of the job, as far as lookups have seen it."""
        return self._session.global_step

    @property
    def received_bytes(self) -> int:
        """Rows, and keys of changed ones, that came from all ps. Unit: bytes."""
        return self._session.counters.pulled + self._key_bytes

    def close(self) -> None:
        """End the sessions. Idempotent."""
        self._closing.set()
        self._leaders.close()
        self._session.close()
        self._chief.close()

    # -- rows ----------------------------------------------------------------------------------

    def find(self, names: Iterable[str]) -> dict[str, VariableDefinition]:
        """Find variables and tables of the job, by name.

        Raises:
            JoinTimeoutError: One is not there within ``join_timeout_s``.
        """
        missing, deadline = set(names), time.monotonic() + self._settings.join_timeout_s
        wanted = list(missing)
        while missing:
            held: dict[str, list[tuple[int, HeldShard]]] = {}
            for ps, peer in enumerate(self._peers):
                for item in peer.named(sorted(missing)):
                    held.setdefault(item.shard.variable.name, []).append((ps, item))
            with self._session.between_steps():
                missing.difference_update(self._session.variables.adopt(held))
            if missing and time.monotonic() >= deadline:
                raise JoinTimeoutError(
                    f"{self._who.task}: the job has no {min(missing)!r} after "
                    f"{self._settings.join_timeout_s:g} s (join_timeout_s); name tables as the "
                    "training program does",
                    variable=min(missing),
                )
            if missing:
                self._closing.wait(_POLL_S)
        self._placed = {name: self._session.variables.place(name) for name in wanted}
        return {name: placed.definition for name, placed in self._placed.items()}

    def shards(self, name: str) -> list[tuple[int, ShardDefinition]]:
        """List the shards of a variable or table in order, as (number of the share, shard)."""
        return self._session.variables.shards(name)

    def lookup_rows(self, wanted: Mapping[str, Array]) -> dict[str, Rows]:
        """Look up rows as they are now; see :meth:`RowLookups.lookup_rows`.

        Raises:
            ShapeMismatchError: The number of a row is out of range.
            PeerLostError: A ps does not answer.
        """
        return self._session.rows.lookup_rows(wanted)

    def changed(self, ps: int, request: FollowRequest) -> tuple[FollowAnswer, Array]:
        """Fetch some rows of a shard that changed, and their keys, int64; in one attempt.

        Raises:
            PeerLostError: The ps does not answer.
            LimitExceededError: It has no memory to note changes in.
        """
        message = session_pb2.ClientMessage(follow_rows=request_to_wire(request))
        with self._session.between_steps():
            reply, payload = self._peers[ps].ask(message)
        answer = answer_from_wire(reply.followed_rows)
        if answer.error is not None:
            raise answer.error
        if len(payload) != answer.payload_bytes or len(payload) % 8:
            raise RefusedError(
                f"{self._peers[ps].task} sent {len(payload)} bytes of keys and announced "
                f"{answer.payload_bytes}"
            )
        self._key_bytes += len(payload)
        return answer, np.frombuffer(payload, np.int64)

    # -- rows of one moment --------------------------------------------------------------------

    def rows_at_a_cut(
        self, wanted: Mapping[str, Array], timeout_s: float
    ) -> tuple[dict[str, Rows], int, Mapping[str, int]]:
        """Look up rows of several variables and tables at one moment of all ps.

        Args:
            wanted: Ids of the rows, as :meth:`lookup_rows` takes them.
            timeout_s: Time to try again after a cut that came to nothing. Unit: seconds.

        Returns:
            (the rows, the global step at that moment, by task the number of its last push in them)

        Raises:
            CutVoidError: None could be taken in time; why the last one was void.
            PeerLostError: The chief, or a ps, does not answer.
            LimitExceededError: The rows do not fit an answer.
        """
        placed = {name: self._placed[name] for name in wanted}
        with self._session.between_steps():
            found = self._distinct.of_all([(placed[n], ids) for n, ids in wanted.items()])
            distinct = dict(zip(wanted, found, strict=True))
        until, backoff = time.monotonic() + timeout_s, Backoff(0.05, 0.5)
        while True:
            try:
                return self._try_cut(placed, distinct)
            except (CutVoidError, PeerLostError) as error:
                pause_s = backoff.next_s()
                if time.monotonic() + pause_s > until:
                    raise type(error)(
                        f"{self._who.task}: no rows of one moment in {timeout_s:g} s: "
                        f"{error.message}",
                        task=self._who.task,
                    ) from error
                self._closing.wait(pause_s)

    def _try_cut(
        self, placed: Mapping[str, PlacedVariable], distinct: Mapping[str, DistinctRows]
    ) -> tuple[dict[str, Rows], int, Mapping[str, int]]:
        out = {
            name: np.empty(
                (distinct[name].unique.size, size_of(row_shape(each.definition.shape))),
                each.definition.dtype,
            )
            for name, each in placed.items()
        }
        wants: dict[int, list[tuple[session_pb2.KeptEntry, Array, memoryview]]] = {}
        for name, each in placed.items():
            for ps, shard in each.shards:
                low, high, numbers = distinct[name].of_shard(shard)
                entry = session_pb2.KeptEntry(variable=name, part=shard.part, rows=high - low)
                if high > low:
                    rows = as_bytes(out[name][low:high])
                    wants.setdefault(ps, []).append((entry, numbers, rows))
        for ps, entries in wants.items():
            asked = session_pb2.KeepRows(entries=[entry for entry, _, _ in entries])
            numbers = np.concatenate([each for _, each, _ in entries])
            self._ask_kept(ps, session_pb2.ClientMessage(keep_rows=asked), numbers)
        cut, step, marks = self._chief.take_cut(self._who, timeout_s=_CUT_S, rows_only=True)
        try:
            read = session_pb2.ClientMessage(read_kept_rows=session_pb2.ReadKeptRows(cut=cut))
            for ps, entries in wants.items():
                _scatter(self._ask_kept(ps, read), [rows for _, _, rows in entries])
        finally:
            with suppress(RopewalkError):  # the next cut ends this one
                self._chief.release_cut(self._who, cut, timeout_s=_ANSWER_S)
        found: dict[str, Rows] = {n: (out[n], distinct[n].inverse) for n in out}
        return found, step, {who.task.short: mark.pushes for who, mark in marks.items()}

    def _ask_kept(
        self, ps: int, message: session_pb2.ClientMessage, payload: Array | None = None
    ) -> memoryview:
        with self._session.between_steps():
            reply, values = self._peers[ps].ask(message, payload)
        if reply.kept_rows.HasField("error"):
            raise from_detail(reply.kept_rows.error)
        return values


def _scatter(values: memoryview, into: Iterable[memoryview]) -> None:
    """Cut an answer into the parts that were asked for.

    Raises:
        RefusedError: It has another size.
    """
    start = 0
    for part in into:
        if start + len(part) > len(values):
            break
        part[:] = values[start : start + len(part)]
        start += len(part)
    else:
        if start == len(values):
            return
    raise RefusedError(f"a ps sent {len(values)} bytes of rows, which is not what was asked for")
