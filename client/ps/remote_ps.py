"""A ps in another process: definitions by unary calls, steps in a session that is opened again."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tenacity import AttemptManager

from ...cluster.access import principal_of_task
from ...cluster.replication.configuration import ShareLeader
from ...core.arrays.dtypes import Array
from ...core.backoff import attempts
from ...core.errors import LimitExceededError, MovedError, PeerLostError, RopewalkError
from ...core.process.events import event, record
from ...core.process.waiting import WaitLog
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.wire import codec
from ...core.wire.cut_marks import CutMark, Elements, elements_from_wire
from ...core.wire.steps import (
    NO_TARGET,
    SESSION_SERVICE,
    SMALL_BYTES,
    HeldShard,
    PullTarget,
    PushResult,
    StepRequest,
)
from ...net.channel import invoke, open_channel
from ...net.connection_choice import ConnectionKind
from ...net.dial import Dialer, WrapStream, reach
from ...proto.v1 import ps_pb2, ps_pb2_grpc, session_pb2
from .locating import leader_in
from .open_session import OpenSession
from .step import Exchange, answered

log = logging.getLogger(__name__)

_DEFINE_TIMEOUT_S = 3600.0
_DEFINE_BATCH = 2000  # definitions per message: about 200 bytes each, far below max_message_bytes


class RemotePs:
    """See :class:`~ropewalk.client.ps.step.PsPeer`.

    Args:
        task: The ps.
        address: Address of the ps.
        who: Incarnation of the calling worker.
        settings: Deadlines and bounds.
        wrap: Put around every byte stream: the seam for faults.
        locate: Says who leads the share now; None: the ps that is given.
        share: Number of the share; None: that of the ps.
        learn: Hears from a ps that has handed the share over who leads it now.
        first_dial_s: Longest first attempt to connect where another ps may lead; each that fails
            doubles it. Unit: seconds.
    """

    def __init__(
        self,
        task: TaskId,
        address: str,
        who: Incarnation,
        settings: Settings,
        wrap: WrapStream = lambda stream: stream,
        locate: Callable[[int], ShareLeader | None] = lambda share: None,  # noqa: ARG005
        share: int | None = None,
        learn: Callable[[ShareLeader], None] = lambda leader: None,  # noqa: ARG005
        first_dial_s: float = 2.0,
    ) -> None:
        self._first_dial_s = first_dial_s
        self._share = task.index if share is None else share
        self._who = who
        self._settings = settings
        self._wrap = wrap
        self._locate = locate
        self._learn = learn
        self._contents = 0  # what the session began with; 0: not known yet
        self._turn_to(task, address)
        self._session: OpenSession | None = None
        self._failed_dials = 0  # in a row, beside steps
        self._description = str(ConnectionKind.GRPC)
        self._shares_memory = settings.shared_memory
        self._max_step_bytes = settings.max_step_bytes
        self._held_bytes = 0
        self._request_id = 0
        self._aborted: RopewalkError | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()  # the share is led elsewhere, or the session is closed

    def _turn_to(self, task: TaskId, address: str) -> None:
        """Reach the share at this ps from now on."""
        who, settings = self._who, self._settings
        self._task, self._address = task, address
        self._peer = f"{task} ({address})"
        self._channel = open_channel(address, settings, principal_of_task(who.task, who.job))
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)
        hello = session_pb2.Hello(
            service=SESSION_SERVICE, share=self._share, expected_ps_generation=self._contents
        )
        self._dialer = Dialer(address, self._peer, hello, who, settings, self._wrap, task)

    def _find_leader(self) -> None:
        """Turn to the ps that leads the share now."""
        leader = self._locate(self._share)
        if leader is None or (leader.leader, leader.address) == (self._task, self._address):
            return
        self._drop_session()
        self._channel.close()
        log.info(
            "share %d is led by %s (%s)",
            self._share,
            leader.leader,
            leader.address,
            extra=event("share.led", share=self._share, leader=leader.leader.short),
        )
        self._turn_to(leader.leader, leader.address)

    def moved(self) -> None:
        """End what waits for another ps: the chief has said who leads. From any thread."""
        session = self._session
        if session is not None and self._is_elsewhere():
            session.cancel()
        self._wake.set()

    def _is_elsewhere(self) -> bool:
        """Return whether the share is led by another ps than the one this session is with."""
        leader = self._locate(self._share)
        return leader is not None and leader.address != self._address

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Note what a ps says of the next leader before its error is raised."""
        try:
            yield
        except MovedError as error:
            if (leader := leader_in(error, self._share)) is not None:
                self._learn(leader)
            raise

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._task

    @property
    def address(self) -> str:
        """Address at which the ps is reached: host:port."""
        return self._address

    @property
    def description(self) -> str:
        """Name of the transport, and why it is not a faster one."""
        session = self._session
        return session.choice.description if session is not None else self._description

    @property
    def shares_memory(self) -> bool:
        """Whether large payloads do not travel."""
        session = self._session
        return session.shares_memory if session is not None else self._shares_memory

    def held_bytes(self) -> int:
        """Return bytes of values on this ps, as of the last definition."""
        return self._held_bytes

    # -- connecting --------------------------------------------------------------------------

    def connect(self, timeout_s: float) -> None:
        """Open the session; one attempt."""
        self._raise_if_aborted()
        if self._closing.is_set():
            raise PeerLostError(f"the session with {self._peer} was closed", peer=self._peer)
        self._drop_session()
        self._find_leader()
        with self._learning():
            reached = reach(self._dialer, self._settings, timeout_s, peer=self._peer)
        welcome = reached.welcome
        self._contents = self._dialer.hello.expected_ps_generation = welcome.ps_generation
        self._max_step_bytes = min(self._settings.max_step_bytes, welcome.max_step_bytes)
        try:
            session = OpenSession(reached, self._who.task, self._settings.request_timeout_s)
        except BaseException:  # its memory cannot be mapped
            reached.connection.close()
            raise
        self._session = session
        self._shares_memory = session.shares_memory
        self._description = reached.choice.description
        if self._closing.is_set():  # meanwhile
            self._drop_session()
            self._raise_if_aborted()
        elif self._is_elsewhere():  # so `moved` found no session to end
            self._drop_session()
            raise PeerLostError(f"{self._peer} leads share {self._share} no more", peer=self._peer)

    def abort(self, error: RopewalkError) -> None:
        """Make a running and every later call raise ``error``."""
        self._aborted = error
        self._closing.set()
        self._wake.set()
        session = self._session
        if session is not None:
            session.cancel()

    def close(self) -> None:
        """End the session."""
        self._closing.set()
        self._wake.set()
        self._drop_session()
        self._channel.close()

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.cancel()
            session.close()

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    # -- definitions -------------------------------------------------------------------------

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards, or look them up."""
        held: list[HeldShard] = []
        for start in range(0, len(shards), _DEFINE_BATCH):
            request = ps_pb2.DefineRequest(
                create=create,
                shards=[codec.shard_to_wire(s) for s in shards[start : start + _DEFINE_BATCH]],
                checkpoint=restore_from,
            )
            response = self._define(request, "define variables")
            held += [codec.held_from_wire(item) for item in response.held]
        return held

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule."""
        for start in range(0, len(variables), _DEFINE_BATCH):
            request = ps_pb2.DefineRequest(
                bind_variables=variables[start : start + _DEFINE_BATCH],
                bind_rule=codec.rule_to_wire(rule),
            )
            self._define(request, "bind an update rule")

    def _define(self, request: ps_pb2.DefineRequest, doing: str) -> ps_pb2.DefineResponse:
        codec.set_sender(request, self._who)
        request.share = self._share
        for attempt in self._attempts():
            with attempt, self._learning():
                self._raise_if_aborted()
                self._find_leader()
                response = invoke(
                    self._stub.Define,
                    request,
                    peer=self._peer,
                    doing=doing,
                    # Filling or restoring a table takes as long as it takes; a ps that is gone is
                    # noticed by its connection, and by the chief.
                    timeout_s=_DEFINE_TIMEOUT_S,
                )
        self._held_bytes = response.held_bytes
        return response

    # -- readers -----------------------------------------------------------------------------

    def named(self, names: Sequence[str]) -> list[HeldShard]:
        """Look up shards of variables that other tasks have created, by their names alone."""
        response = self._define(ps_pb2.DefineRequest(names=names), "look up variables")
        return [codec.held_from_wire(item) for item in response.held]

    def ask(
        self, message: session_pb2.ClientMessage, payload: Array | None = None
    ) -> tuple[session_pb2.ServerMessage, memoryview]:
        """Send a message beside steps, in one attempt; returns the answer and its payload.

        Raises:
            PeerLostError: The connection broke. The next attempt opens it again.
        """
        self._raise_if_aborted()
        if self._session is None or self._is_elsewhere():
            dial_s = min(self._settings.request_timeout_s, self._dial_s(self._failed_dials))
            self._failed_dials += 1
            self.connect(dial_s)
            self._failed_dials = 0
        session = self._session
        if session is None:
            raise PeerLostError(f"the session with {self._peer} was closed", peer=self._peer)
        try:
            return session.ask(message, payload, self._max_step_bytes)
        except OSError as error:
            self._drop_session()
            raise PeerLostError(
                f"the connection to {self._peer} broke: {error.strerror or error}", peer=self._peer
            ) from error
        except RopewalkError:  # the ps has ended the session
            self._drop_session()
            raise

    # -- cuts --------------------------------------------------------------------------------

    def mark_cut(self, number: int, mark: CutMark, timeout_s: float) -> None:
        """Tell the ps that leads now where a cut is, in one attempt."""
        if self._is_elsewhere():  # the program's next step may be far away
            self.connect(timeout_s)
        request = ps_pb2.MarkCutRequest(
            share=self._share, cut=number, sequence=mark.sequence, pushes=mark.pushes
        )
        codec.set_sender(request, self._who)
        invoke(
            self._stub.MarkCut, request, peer=self._peer, doing="mark a cut", timeout_s=timeout_s
        )

    def read_cut(self, number: int, piece: int, timeout_s: float) -> list[Elements]:
        """Read values of a cut, in one attempt: what was read is not kept."""
        request = ps_pb2.ReadCutRequest(share=self._share, cut=number, piece=piece)
        codec.set_sender(request, self._who)
        answer = invoke(
            self._stub.ReadCut, request, peer=self._peer, doing="read a cut", timeout_s=timeout_s
        )
        return [elements_from_wire(each) for each in answer.values]

    # -- steps -------------------------------------------------------------------------------

    def step(self, request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        """Carry out a step, over as many connections as it takes."""
        self._raise_if_aborted()
        size = request.payload_bytes
        if size > self._max_step_bytes:
            raise LimitExceededError(
                f"a step of {size} bytes to {self._peer} is over "
                f"max_step_bytes={self._max_step_bytes}; "
                "raise ROPEWALK_MAX_STEP_BYTES on both sides, or spread the variables over more ps",
                limit="max_step_bytes",
                value=size,
                task=self._task,
            )
        session = self._session
        if session is None or size <= SMALL_BYTES or not session.shares_memory:  # it travels
            request = request.kept()
        self._request_id += 1
        if session is None:
            yield
            self._raise_if_aborted()
            yield
        else:
            try:
                return (yield from session.step(request, target, self._request_id))
            except PeerLostError as error:
                self._raise_if_aborted()
                broken = event("ps.broken", peer=self._peer, error=error)
                log.warning("%s; reconnecting", error, extra=broken)
                request = session.unanswered or request
        result = self._repeated(request.again(), PullTarget(target.into))
        record("ps.reconnected", peer=self._peer)
        return result

    def _repeated(self, request: StepRequest, target: PullTarget) -> PushResult:
        """Connect anew and repeat a step, until it is answered; the ps knows if it was applied."""
        for number, attempt in enumerate(self._attempts()):
            with attempt:
                self._raise_if_aborted()
                self.connect(self._dial_s(number))
                session = self._session
                if session is None:
                    raise PeerLostError(
                        f"step: the session with {self._peer} was closed", peer=self._peer
                    )
                result = answered(session.step(request, target, self._request_id))
        return result

    def _attempts(self) -> Iterator[AttemptManager]:
        """Return attempts to reach a ps whose connection broke."""
        # With replicas the chief says who leads instead, or ends the job; it may have to be started
        # again for that.
        is_led = self._locate(self._share) is not None
        limit = "orphan_timeout_s" if is_led else "reconnect_timeout_s"
        limit_s = float(getattr(self._settings, limit))
        waits = WaitLog(self._who.task, limit_s=limit_s, limit=limit)
        return attempts(
            timeout_s=limit_s,
            stop=self._closing,
            wake=self._wake,
            max_s=1.0,
            before_sleep=lambda error: waits.tick(self._peer, error or ""),
        )

    def _dial_s(self, number: int) -> float:
        """Choose how long an attempt to connect may take: one under way does not hear who leads
        now.
        """
        longest_s = self._settings.reconnect_timeout_s
        if self._locate(self._share) is None:
            return longest_s
        return min(longest_s, self._first_dial_s * 2.0 ** min(number, 10))
