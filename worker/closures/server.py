"""A worker without a program: it runs what the coordinator schedules, until the job is over.

The standard server of TensorFlow 2's parameter-server training. Only the task that leads the job is
let in: what it sends are functions.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...client.closure_link import SERVICE, receive_parts
from ...cluster.access.leadership import Leadership
from ...cluster.roles import CHIEF
from ...core.errors import PeerLostError, RopewalkError
from ...core.exit_codes import ExitCode
from ...core.states import Outcome
from ...distribute.base.devices import compute_devices
from ...distribute.coordinator.closure_runner import ClosureRunner
from ...distribute.runtime import ClusterRuntime
from ...net.auth.guard import Guard
from ...net.connection import Connection
from ...net.dial import parse
from ...net.endpoint import Greeting
from ...net.host import TaskHost
from ...proto.v1 import session_pb2
from ..process.program import Ending, ending_of

log = logging.getLogger(__name__)

_THREADS = 4
_MAX_SESSIONS = 8
_POLL_S = 0.2
_TURN_S = 2.0  # for a closure of a connection that broke to end


class ClosureServer:
    """Serves a coordinator at the worker's address.

    Args:
        runtime: The worker's connection to its cluster.
        job: Id of the worker's job.
        may_end_process: A closure that does not end in time ends this process.
    """

    def __init__(self, runtime: ClusterRuntime, job: str, *, may_end_process: bool = False) -> None:
        task, settings = runtime.task, runtime.settings
        self._task = task.task
        self._address = task.address
        self._settings = settings
        self._runner = ClosureRunner(task.task.index, runtime, may_end_process=may_end_process)
        self._may_end_process = may_end_process
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._connection: Connection | None = None
        self._host = TaskHost(
            task.task,
            threads=_THREADS,
            # Probes are answered since before the worker joined its job.
            settings=settings.model_copy(update={"health_port": 0}),
            calls={},
            guard=Guard(
                task.task,
                settings,
                job=lambda: job,
                leadership=lambda: Leadership(has_chief=task.chief.type == CHIEF),
            ),
            sessions={SERVICE: self._serve},
            max_sessions=_MAX_SESSIONS,
        )

    def start(self) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: The settings do not say how callers authenticate.
        """
        self._host.start(self._address)
        log.info("runs closures at port %d", self._host.port)

    @property
    def port(self) -> int:
        """Port at which it listens."""
        return self._host.port

    def stop(self) -> None:
        """Leave the coordinator."""
        self._host.stop(0)

    def _serve(self, greeting: Greeting) -> bool:
        """Run the closures of one connection, in order."""
        connection = greeting.connection
        with self._only(connection):
            greeting.welcome(replicas=len(compute_devices()))
            self._runner.forget()
            while (data := connection.receive()) is not None:
                self._handle(parse(session_pb2.ClientMessage, data), connection)
        return False

    @contextmanager
    def _only(self, connection: Connection) -> Iterator[None]:
        """Serve one coordinator at a time; a new connection of it takes the place of the one
        before.
        """
        with self._lock:
            before, self._connection = self._connection, connection
        if before is not None:
            before.cancel()
        if not self._turn.acquire(timeout=_TURN_S):
            if self._may_end_process:
                log.error(
                    "%s: a closure of a connection that broke goes on; its process is ended",
                    self._task,
                )
                os._exit(ExitCode.PEER_LOST)
            raise PeerLostError(
                f"{self._task} still runs a closure of a connection that broke; it is asked again",
                task=self._task,
            )
        try:
            yield
        finally:
            self._turn.release()

    def _handle(self, message: session_pb2.ClientMessage, connection: Connection) -> None:
        part_bytes = (
            *message.run_closure.part_bytes,
            *message.define_function.part_bytes,
            *message.change_optimizer.part_bytes,
        )
        parts = receive_parts(connection, part_bytes, self._settings.max_step_bytes)

        def began(answer: session_pb2.ClosureAnswer) -> None:
            _answer(connection, answer, [])

        done = self._runner.handle(message, parts, began)
        if done is not None:
            _answer(connection, *done)


def serve_closures(runtime: ClusterRuntime, *, may_end_process: bool = False) -> Ending:
    """Run closures until the job is over, or this task should end; returns how it ended.

    Args:
        runtime: The worker's connection to its cluster.
        may_end_process: A closure that does not end in time ends this process; another process
            replaces it.
    """
    server = ClosureServer(runtime, runtime.session.who.job, may_end_process=may_end_process)
    try:
        server.start()
        while not runtime.job.wait_over(_POLL_S):
            runtime.job.check()
    except RopewalkError as error:
        return ending_of(error)
    finally:
        server.stop()
    return Ending(Outcome.DONE, ExitCode.DONE)


def _answer(
    connection: Connection, answer: session_pb2.ClosureAnswer, results: Sequence[memoryview]
) -> None:
    message = session_pb2.ServerMessage(closure=answer)
    connection.send([message.SerializeToString()], results, sum(answer.part_bytes))
