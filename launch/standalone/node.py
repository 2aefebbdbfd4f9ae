"""A node of a standalone cluster: runs the tasks that the gateway orders, and tells their news."""

import contextlib
import json
import logging
import secrets
import shutil
import signal
import threading
import time
from collections import deque
from pathlib import Path

from ...client.gateway.calls import GatewayClient
from ...cluster.principal import principal_of_task
from ...core import codec
from ...core.errors import AccessError, PeerLostError, WindlassError
from ...core.exit_codes import ExitCode
from ...core.settings import Settings
from ...core.shipping import unpack
from ...core.task import TaskId
from ...core.temporary import TemporaryFolder
from ...core.versions import own_versions
from ...core.waiting import WaitLog
from ...proto.v1 import gateway_pb2
from ..processes import (
    Line,
    ParentDeathPipe,
    TaskProcess,
    free_ports,
    read_output,
    task_environment,
)
from .leftovers import end_leftovers
from .spares import Spares

log = logging.getLogger(__name__)

_PORTS = 8  # offered at once
_POLL_S = 2.0  # so long an order to stop this daemon may wait
_RETRY_S = 0.5
_MOST_EVENTS = 10_000  # that the gateway has not taken; a task that prints more has to wait
_SENT_BYTES = 1024 * 1024
_EXIT_OUTPUT_S = 5.0  # for the last lines of a task that has ended

_Key = tuple[str, TaskId]


class Node:
    """Runs tasks of one role. Call :meth:`run` from one thread, :meth:`stop` from any.

    Args:
        task: Its role and number.
        gateway: Its address.
        host: Where others reach the tasks that run here.
        settings: Of the daemon; its tasks have the same but for what their job says.
    """

    def __init__(self, task: TaskId, gateway: str, host: str, settings: Settings) -> None:
        self._task = task
        self._host = host
        self._settings = settings
        who = principal_of_task(task, settings.job_id)
        self._orders_from = GatewayClient(gateway, settings, who)
        self._events_to = GatewayClient(gateway, settings, who)
        self._changed = threading.Condition()
        self._unpacking = threading.Lock()
        self._stopping = False
        self._temporary = TemporaryFolder("windlass-node")
        self._folder = self._temporary.path
        self._death_pipe = ParentDeathPipe()
        self._spares = Spares(task, self._death_pipe)
        self._ports: list[int] = []
        self._running: dict[_Key, TaskProcess | None] = {}  # None: it is being started
        self._cancelled: set[_Key] = set()
        self._begin_anew("")

    def _begin_anew(self, gateway: str) -> None:
        self._gateway = gateway
        self._instance = secrets.token_hex(8)
        self._orders_taken = 0
        self._events: deque[gateway_pb2.TaskEvent] = deque()
        self._first_event = 1

    def run(self) -> int:
        """Serve until :meth:`stop`; returns the exit code. No process is left.

        Raises:
            WindlassError: The gateway refuses this node.
        """
        sender = threading.Thread(target=self._send_events, name="events", daemon=True)
        sender.start()
        self._spares.start()
        heard = time.monotonic()
        was_let_in = False
        waits = WaitLog(self._task, limit="it waits for as long as it takes")
        try:
            while not self._stopping:
                try:
                    answer = self._orders_from.poll(self._request(_POLL_S, []))
                except (PeerLostError, AccessError) as error:
                    if isinstance(error, AccessError) and not was_let_in:
                        raise  # later it may be a token that is about to be renewed
                    silent_s = time.monotonic() - heard
                    waits.tick(f"the gateway at {self._orders_from.address}", error)
                    if silent_s > self._settings.orphan_timeout_s and self._running:
                        log.warning("no gateway for %.0f s: ending the tasks here", silent_s)
                        self._kill_all()
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, _RETRY_S)
                    continue
                waits.done()
                heard, was_let_in = time.monotonic(), True
                self._take(answer)
        finally:
            self._kill_all(signal.SIGTERM)
            self._wait_for_ends(self._settings.drain_grace_s + self._settings.leave_grace_s)
            self._kill_all()
            self._wait_for_ends(_EXIT_OUTPUT_S)
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            sender.join(_RETRY_S)
            self._spares.close()
            self._orders_from.close()
            self._events_to.close()
            self._death_pipe.close()
            self._temporary.remove()
        return int(ExitCode.DRAINED)

    @property
    def running(self) -> int:
        """Tasks that run here."""
        return len(self._running)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping

    def stop(self) -> None:
        """End the tasks, and :meth:`run`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._kill_all(signal.SIGTERM)

    # -- what is said ------------------------------------------------------------------------

    def _request(
        self, wait_s: float, events: list[gateway_pb2.TaskEvent]
    ) -> gateway_pb2.PollRequest:
        with self._changed:
            if len(self._ports) < _PORTS:
                self._ports += free_ports(_PORTS - len(self._ports))
            return gateway_pb2.PollRequest(
                node=codec.task_to_wire(self._task),
                instance=self._instance,
                host=self._host,
                ports=self._ports,
                events=events,
                first_event=self._first_event,
                orders_taken=self._orders_taken,
                wait_s=wait_s,
                versions=codec.versions_to_wire(own_versions()),
            )

    def _send_events(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._stopping)
                if not self._events:
                    return
                instance, batch, size = self._instance, list[gateway_pb2.TaskEvent](), 0
                for event in self._events:
                    size += event.ByteSize()
                    if batch and (size > _SENT_BYTES or len(batch) >= 1000):
                        break
                    batch.append(event)
                request = self._request(0.0, batch)  # of the same instance as the batch
            try:
                answer = self._events_to.poll(request)
            except WindlassError as error:
                log.debug("events are told later: %s", error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopping, _RETRY_S):
                        return
                continue
            with self._changed:
                if instance != self._instance:
                    continue
                while self._events and self._first_event <= answer.events_taken:
                    self._events.popleft()
                    self._first_event += 1
                self._changed.notify_all()

    def _tell(self, key: _Key, **event: object) -> None:
        job, task = key
        told = gateway_pb2.TaskEvent(job=job, task=codec.task_to_wire(task), **event)  # type: ignore[arg-type]
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) < _MOST_EVENTS or self._stopping)
            self._events.append(told)
            self._changed.notify_all()

    # -- what is ordered ---------------------------------------------------------------------

    def _take(self, answer: gateway_pb2.PollResponse) -> None:
        if self._gateway and answer.gateway != self._gateway:
            log.warning("the gateway has restarted and knows no jobs: ending the tasks here")
            self._kill_all()
            with self._changed:
                self._begin_anew(answer.gateway)
            return
        self._gateway = answer.gateway
        for order in answer.orders:
            if order.number <= self._orders_taken:
                continue
            self._orders_taken = order.number
            if order.WhichOneof("kind") == "start":
                self._begin(order.start)
            else:
                self._end(order.stop)

    def _begin(self, start: gateway_pb2.StartTask) -> None:
        key = start.job, codec.task_from_wire(start.task)
        with self._changed:
            self._running[key] = None
            own = json.loads(start.tf_config)["cluster"].get(key[1].type, [])
            used = int(own[key[1].index].rpartition(":")[2]) if key[1].index < len(own) else 0
            self._ports = [port for port in self._ports if port != used]
        # A package may take long to come, and orders to stop something else are taken meanwhile.
        threading.Thread(
            target=self._run_task, args=(key, start), name=key[1].short, daemon=True
        ).start()

    def _run_task(self, key: _Key, start: gateway_pb2.StartTask) -> None:
        code = int(ExitCode.PEER_LOST)
        try:
            folder = self._unpacked(start.job, start.digest)
            environment = {
                **self._settings.model_copy(
                    update={
                        "health_port": 0,
                        "metrics_port": 0,
                        "stay_without_chief": False,
                        "log_format": "bare",
                        "model_dir": "",
                        "standalone": False,
                    }
                ).environment(),
                **{f"WINDLASS_{name.upper()}": value for name, value in start.settings.items()},
                "TF_CONFIG": start.tf_config,
            }
            with self._changed:
                if key in self._cancelled or self._stopping:
                    code = int(ExitCode.DRAINED)
                    return
                started = self._spares.become(
                    start.command, task_environment(environment, self._death_pipe), folder
                )
                process = read_output(key[1], started, lambda line: self._tell_line(key, line))
                self._running[key] = process
            log.info("job %s: %s began, package %s", *_named(key), start.digest[:12] or "none")
            code = process.process.wait()
            for reader in process.readers:
                reader.join(_EXIT_OUTPUT_S)
            process.signal(signal.SIGKILL)  # to what it has left behind
            if left := end_leftovers(start.tf_config):
                log.info("job %s: %s had detached %d processes, which end", *_named(key), left)
        except (WindlassError, OSError) as error:
            code = int(getattr(error, "exit_code", ExitCode.STORAGE))
            self._tell_line(key, Line(key[1], f"it could not be started: {error}", is_error=True))
        finally:
            with self._changed:
                self._running.pop(key, None)
                self._cancelled.discard(key)
                gone = self._folder / f".gone-{secrets.token_hex(8)}"
                if not any(job == key[0] for job, _ in self._running):
                    with contextlib.suppress(OSError):  # it was never made
                        (self._folder / key[0]).rename(gone)
                self._changed.notify_all()
            # Meanwhile orders are taken: a program may have left many files.
            shutil.rmtree(gone, ignore_errors=True)
            log.info("job %s: %s ended with %d", *_named(key), code)
            self._tell(key, exit_code=code, attempt=start.attempt)

    def _unpacked(self, job: str, digest: str) -> Path:
        """The job's folder on this node, with its package in it."""
        folder = self._folder / job
        if not digest:
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
        # One task of a job fetches it; orders and news of others go on meanwhile.
        with self._unpacking:
            if not folder.exists():
                unpack(self._events_to.get_package(digest), digest, folder)
        return folder

    def _tell_line(self, key: _Key, line: Line) -> None:
        wire = gateway_pb2.LogLine(
            task=codec.task_to_wire(line.task), text=line.text, is_error=line.is_error
        )
        self._tell(key, line=wire)

    def _end(self, stop: gateway_pb2.StopTask) -> None:
        key = stop.job, codec.task_from_wire(stop.task)
        with self._changed:
            process = self._running.get(key)
            if process is None:
                if key in self._running:
                    self._cancelled.add(key)
                return
        process.signal(signal.SIGKILL if stop.kill else signal.SIGTERM)

    def _kill_all(self, number: signal.Signals = signal.SIGKILL) -> None:
        with self._changed:
            for key, process in self._running.items():
                if process is None:
                    self._cancelled.add(key)
                else:
                    with contextlib.suppress(OSError):
                        process.signal(number)

    def _wait_for_ends(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)


def _named(key: _Key) -> tuple[str, str]:
    return key[0], key[1].short
