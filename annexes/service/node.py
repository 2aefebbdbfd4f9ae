"""A node of a standalone cluster: runs the tasks that the gateway orders, and tells their news."""

import json
import logging
import secrets
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...cluster.access import principal_of_task
from ...core.errors import AccessError, AddressInUseError, PeerLostError, RopewalkError, said_of
from ...core.exit_codes import ExitCode
from ...core.files.temporary import TemporaryFolder
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread
from ...core.process.waiting import WaitLog
from ...core.setting_groups import Concern
from ...core.settings import Settings, settings_of
from ...core.task import TaskId
from ...core.versions import own_versions
from ...core.wire import codec
from ...launch.local.gpus import VISIBLE
from ...launch.processes.executor import Executor, Work
from ...launch.processes.process import (
    Line,
    ParentDeathPipe,
    TaskProcess,
    process_environment,
    process_settings,
    read_output,
    task_environment,
)
from ...net.auth.credentials import are_of_one_index
from ...net.this_machine import free_ports
from ...proto.v1 import gateway_pb2
from ...shipping import unpack
from .calls import GatewayClient
from .gpus import offered_gpus
from .spares import Spares, become

log = logging.getLogger(__name__)

# -- The news of a node that its gateway has not confirmed: numbered, in order, within a bound --

_MOST = 10_000  # then a producer waits: a task that prints faster than it is taken
_SENT = 1000
_SENT_BYTES = 1024 * 1024


class Events:
    """Lines of tasks, and their ends. To be used under the lock of ``changed``.

    Args:
        changed: Notified at every change. Held when this is made.

    Attributes:
        first: Number of the first event that is not confirmed.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._waiting: deque[gateway_pb2.TaskEvent] = deque()
        self._is_over = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: there is a new gateway, which counts from 1."""
        self._waiting.clear()
        self.first = 1
        self._changed.notify_all()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, event: gateway_pb2.TaskEvent) -> None:
        """Add one; waits while there are too many."""
        self._changed.wait_for(lambda: len(self._waiting) < _MOST or self._is_over)
        self._waiting.append(event)
        self._changed.notify_all()

    def batch(self) -> list[gateway_pb2.TaskEvent]:
        """Return the first events, as many as are sent at once."""
        batch, size = list[gateway_pb2.TaskEvent](), 0
        for event in self._waiting:
            size += event.ByteSize()
            if batch and (size > _SENT_BYTES or len(batch) >= _SENT):
                break
            batch.append(event)
        return batch

    def confirm(self, number: int) -> None:
        """Drop the events up to this number, which the gateway has."""
        while self._waiting and self.first <= number:
            self._waiting.popleft()
            self.first += 1
        self._changed.notify_all()

    def ends(self) -> set[tuple[str, TaskId]]:
        """List the tasks whose end is not confirmed, each as (job, task)."""
        return {
            (event.job, codec.task_from_wire(event.task))
            for event in self._waiting
            if event.WhichOneof("kind") == "exit_code"
        }

    def close(self) -> None:
        """Release all that wait."""
        self._is_over = True
        self._changed.notify_all()


_PORTS = 8  # offered at once
_POLL_S = 2.0  # so long an order to stop this daemon may wait
_RETRY_S = 0.5
_EXIT_OUTPUT_S = 5.0  # for the last lines of a task that has ended

_Key = tuple[str, TaskId]


@dataclass(slots=True)
class _JobFolder:
    path: Path
    tasks: int = 0  # of the job that run here


class NodeAgent:
    """Runs tasks of one role. Call :meth:`run` from one thread, :meth:`stop` from any.

    Args:
        task: Role and number of the node.
        gateway: Address of the gateway.
        host: Host at which others reach the tasks that run here.
        settings: Settings of the daemon; its tasks have the same but for what their job says.
    """

    def __init__(self, task: TaskId, gateway: str, host: str, settings: Settings) -> None:
        self._task = task
        self._host = host
        self._settings = settings
        who = principal_of_task(task, settings.job_id)
        self._orders_from = GatewayClient(gateway, settings, who)
        self._events_to = GatewayClient(gateway, settings, who)
        self._has_own_index = are_of_one_index(settings)
        self._gpus = offered_gpus(task.type)
        self._changed = threading.Condition()  # its lock may be taken again by its holder
        self._lacks = RareLog(log)
        self._unpacking = threading.Lock()
        self._stopping = False
        self._failure: RopewalkError | None = None
        self._temporary = TemporaryFolder("ropewalk-node")
        self._death_pipe = ParentDeathPipe()
        self._spares = Spares(task, self._death_pipe)
        self._ports: list[int] = []
        self._executor = Executor[_Key](_EXIT_OUTPUT_S, self._failed)
        self._folders: dict[str, _JobFolder] = {}  # of each job that runs here
        with self._changed:
            self._events = Events(self._changed)
            self._begin_anew("")

    def _begin_anew(self, gateway: str) -> None:
        self._gateway = gateway
        self._instance = secrets.token_hex(8)
        self._orders_taken = 0
        self._events.begin_anew()

    def run(self) -> int:
        """Serve until :meth:`stop`; returns the exit code. No process is left.

        Raises:
            RopewalkError: The gateway refuses this node, or cannot be told any more what happens
                here; or another process is this node, or has become it.
        """
        sender = new_thread("events", self._send_events, failed=self._failed)
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
                    if silent_s > self._settings.orphan_timeout_s and self.running:
                        log.warning("no gateway for %.0f s: ending the tasks here", silent_s)
                        self._executor.send_all(signal.SIGKILL)
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, _RETRY_S)
                    continue
                heard, was_let_in = time.monotonic(), True
                if answer.waits_for:
                    waits.tick(answer.waits_for)
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, _RETRY_S)
                    continue
                waits.done()
                self._take(answer)
                self._kill_who_is_stopped()
        finally:
            self._executor.send_all(signal.SIGTERM)
            self._executor.wait(self._settings.drain_grace_s + self._settings.leave_grace_s)
            self._executor.send_all(signal.SIGKILL)
            self._executor.wait(_EXIT_OUTPUT_S)
            with self._changed:
                self._stopping = True
                self._events.close()
            sender.join(_RETRY_S)
            self._spares.close()
            self._orders_from.close()
            self._events_to.close()
            self._death_pipe.close()
            self._temporary.remove()
        if self._failure is not None:
            raise self._failure
        return int(ExitCode.DRAINED)

    def _failed(self, error: BaseException) -> None:
        """End, since the gateway would wait for news that never come."""
        self._failure = self._failure or RopewalkError(
            f"{self._task.short}: the gateway cannot be told any more what happens here: "
            f"{said_of(error)}"
        )
        self.stop()

    @property
    def running(self) -> int:
        """Tasks that run here."""
        return len(self._executor.running)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping

    def stop(self) -> None:
        """End the tasks, and :meth:`run`."""
        with self._changed:
            self._stopping = True
            self._events.close()
        self._executor.send_all(signal.SIGTERM)

    # -- messages ----------------------------------------------------------------------------

    def _request(
        self, wait_s: float, events: list[gateway_pb2.TaskEvent]
    ) -> gateway_pb2.PollRequest:
        with self._changed:
            if len(self._ports) < _PORTS:
                try:
                    self._ports += free_ports(_PORTS - len(self._ports))
                except (AddressInUseError, OSError) as error:
                    self._lacks.warning("fewer ports are offered: %s", error)
            runs = [
                gateway_pb2.RunningTask(job=job, task=codec.task_to_wire(task))
                for job, task in self._events.ends() | self._executor.running
            ]
            return gateway_pb2.PollRequest(
                node=codec.task_to_wire(self._task),
                instance=self._instance,
                host=self._host,
                ports=self._ports,
                events=events,
                first_event=self._events.first,
                orders_taken=self._orders_taken,
                wait_s=wait_s,
                has_own_index=self._has_own_index,
                gpus=self._gpus,
                running=gateway_pb2.RunningTasks(tasks=runs),
                versions=codec.versions_to_wire(own_versions()),
            )

    def _send_events(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._stopping)
                if not self._events:
                    return
                instance = self._instance
                request = self._request(0.0, self._events.batch())
            try:
                answer = self._events_to.poll(request)
            except (RopewalkError, OSError) as error:
                log.debug("events are told later: %s", error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopping, _RETRY_S):
                        return
                continue
            with self._changed:
                if instance != self._instance:
                    continue
                self._events.confirm(answer.events_taken)

    def _tell(self, event: gateway_pb2.TaskEvent) -> None:
        with self._changed:
            self._events.add(event)

    # -- what is ordered ---------------------------------------------------------------------

    def _take(self, answer: gateway_pb2.PollResponse) -> None:
        if self._gateway and answer.gateway != self._gateway:
            log.warning("the gateway has restarted and knows no jobs: ending the tasks here")
            self._executor.send_all(signal.SIGKILL)
            with self._changed:
                self._begin_anew(answer.gateway)
            return
        self._gateway = answer.gateway
        for order in answer.orders:
            if order.number <= self._orders_taken:
                continue
            if order.WhichOneof("kind") == "start":
                self._begin(order.start, order.number)
            else:
                self._orders_taken = order.number
                self._end(order.stop)

    def _begin(self, start: gateway_pb2.StartTask, number: int) -> None:
        key = start.job, codec.task_from_wire(start.task)
        # A package may take long to come, and orders to stop something else are taken meanwhile.
        work = Work(
            key[1].short,
            start.tf_config,
            make=partial(self._make, key, start),
            begin=partial(self._become, key, start),
            ended=partial(self._ended, key, start.attempt),
        )
        with self._changed:
            self._orders_taken = number  # at once with what runs: the gateway compares them
            # A name of its own: what an earlier job of this id has left may still be there.
            own_name = f"{start.job}-{secrets.token_hex(4)}"
            folder = self._folders.setdefault(
                start.job, _JobFolder(self._temporary.path / own_name)
            )
            folder.tasks += 1
            own = json.loads(start.tf_config)["cluster"].get(key[1].type, [])
            used = int(own[key[1].index].rpartition(":")[2]) if key[1].index < len(own) else 0
            self._ports = [port for port in self._ports if port != used]
            try:
                self._executor.start(key, work)
            except RuntimeError as error:  # no more threads
                self._ended(key, start.attempt, PeerLostError(said_of(error)))

    def _make(self, key: _Key, start: gateway_pb2.StartTask) -> TaskProcess:
        self._unpack(start.job, start.digest)
        return read_output(key[1], self._spares.take(), partial(self._tell_line, key))

    def _become(self, key: _Key, start: gateway_pb2.StartTask, process: TaskProcess) -> None:
        own = _environment_of(start, self._settings)
        if self._gpus:  # else this daemon does not know what a task may see
            own[VISIBLE] = ",".join(start.gpus)
        environment = task_environment(own, self._death_pipe)
        become(process.process, start.command, environment, self._folders[start.job].path)
        log.info("job %s: %s began, package %s", *_named(key), start.digest[:12] or "none")

    def _ended(self, key: _Key, attempt: int, outcome: int | Exception) -> None:
        """Tell that a task has ended, and only then have removed what its job leaves here.

        A program may have left so much, or such a thing, that removing it takes long or fails.
        """
        code = outcome if isinstance(outcome, int) else self._tell_why(key, outcome)
        log.info("job %s: %s ended with %d", *_named(key), code)
        job, task = key
        end = gateway_pb2.TaskEvent(
            job=job, task=codec.task_to_wire(task), exit_code=code, attempt=attempt
        )
        with self._changed:
            self._tell(end)
            folder = self._folders[job]
            folder.tasks -= 1
            if not folder.tasks:
                del self._folders[job]
        if not folder.tasks:
            self._temporary.discard(folder.path)

    def _tell_why(self, key: _Key, error: Exception) -> int:
        """Tell why a task could not be run; its exit code."""
        if not isinstance(error, RopewalkError | OSError):
            log.error("job %s: %s could not be run", *_named(key), exc_info=error)
        why = f"it could not be started: {said_of(error)}"
        self._tell_line(key, Line(key[1], why, is_error=True))
        return int(getattr(error, "exit_code", ExitCode.STORAGE))

    def _unpack(self, job: str, digest: str) -> None:
        """Make the job's folder on this node, with its package in it."""
        folder = self._folders[job].path
        self._temporary.present()
        if not digest:
            folder.mkdir(mode=0o700, exist_ok=True)
            return
        # One task of a job fetches it; orders and news of others go on meanwhile.
        with self._unpacking:
            if not folder.exists():
                unpack(self._events_to.get_package(digest), digest, folder)

    def _tell_line(self, key: _Key, line: Line) -> None:
        task = codec.task_to_wire(line.task)
        # A path in an error may have bytes that are no text.
        text = line.text.encode(errors="replace").decode()
        wire = gateway_pb2.LogLine(task=task, text=text, is_error=line.is_error)
        self._tell(gateway_pb2.TaskEvent(job=key[0], task=codec.task_to_wire(key[1]), line=wire))

    def _end(self, stop: gateway_pb2.StopTask) -> None:
        key = stop.job, codec.task_from_wire(stop.task)
        self._executor.send(key, signal.SIGKILL if stop.kill else signal.SIGTERM)

    def _kill_who_is_stopped(self) -> None:
        """Kill tasks that a signal has kept stopped for longer than a lease and a grace: they hold
        their job up.
        """
        now = time.monotonic()
        patience_s = self._settings.lease_s + self._settings.leave_grace_s
        for key, since in self._executor.stopped(now).items():
            if now - since >= patience_s:
                why = f"it has been stopped (SIGSTOP) for {now - since:.0f} s and is killed"
                self._tell_line(key, Line(key[1], why, is_error=True))
                self._executor.send(key, signal.SIGKILL)


def _environment_of(start: gateway_pb2.StartTask, settings: Settings) -> dict[str, str]:
    """Collect the variables of a task: the settings of the daemon, with what its job has
    instead.
    """
    gateways = {name: Settings.model_fields[name].default for name in settings_of(Concern.GATEWAY)}
    of_daemon = process_settings(settings, model_dir="", standalone=False, **gateways)
    of_job = {f"ROPEWALK_{name.upper()}": value for name, value in start.settings.items()}
    return process_environment(of_daemon, start.tf_config, own=of_job, user={})


def _named(key: _Key) -> tuple[str, str]:
    return key[0], key[1].short
