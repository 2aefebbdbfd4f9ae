"""``ropewalk doctor``: why a task cannot be reached."""

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ...cluster.access import DRIVER
from ...cluster.address import parse_address
from ...core import annexes
from ...core.errors import (
    AccessError,
    ConfigurationError,
    PeerLostError,
    ProtocolMismatchError,
    RopewalkError,
)
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.versions import own_versions
from ...core.wire import codec
from ...net.auth.credentials import SecurityMode, security_mode
from ...net.auth.tls_failures import CertificateFacts, read_facts
from ...net.auth.tls_stream import TlsStream
from ...net.dial import Dialer
from ...net.endpoint import WHO
from ...net.sockets import connect_tcp, split_address
from ...proto.v1 import session_pb2
from ..found_job import written_status
from ..options import caller_options, take_settings

# -- Obstacles between this machine and a task: one step after another, up to the first that fails
# Each step needs the one before it. The last ones use the task's own greeting, so what they find
# is what a worker would find.


@dataclass(frozen=True, slots=True)
class DoctorStep:
    """A step of the examination.

    Attributes:
        name: Name of the step.
        passed: Whether it is as it should be; None: the check was not reached.
        said: Finding of the step, or what to do.
        error: Why it failed.
    """

    name: str
    passed: bool | None
    said: str = ""
    error: RopewalkError | None = None


NAMES = ("address", "DNS", "port", "encryption", "certificate", "identity", "protocol", "task")


def way_to(address: str, settings: Settings, timeout_s: float) -> list[DoctorStep]:
    """Walk the way to a task.

    Args:
        address: host:port.
        settings: Settings of this machine's tasks.
        timeout_s: Time limit of each step. Unit: seconds.

    Returns:
        A step for each of :data:`NAMES`.
    """
    steps: list[DoctorStep] = []
    doctor = _Doctor(address, settings, timeout_s)
    looks: tuple[Callable[[], str], ...] = (
        doctor.address_, doctor.dns, doctor.port, doctor.encryption, doctor.certificate,
        doctor.identity, doctor.protocol, doctor.task,
    )  # fmt: skip
    for name, look in zip(NAMES, looks, strict=True):
        if steps and not steps[-1].passed:
            steps.append(DoctorStep(name, None))
            continue
        try:
            steps.append(DoctorStep(name, True, look()))
        except RopewalkError as error:
            steps.append(DoctorStep(name, False, error.message, error))
    return steps


def examine(address: str, settings: Settings, timeout_s: float) -> list[DoctorStep]:
    """Look at a task, and if it leads a job at the tasks of that.

    Args:
        address: host:port.
        settings: Settings of this machine's tasks.
        timeout_s: Time limit of each step. Unit: seconds.

    Returns:
        The way to it, and if all is well until there, the steps of annexes, which compare tasks.
    """
    steps = way_to(address, settings, timeout_s)
    if steps[-1].passed:
        for module in annexes.at("doctor_steps"):
            steps += module.further(address, settings, timeout_s)
    return steps


class _Doctor:
    def __init__(self, address: str, settings: Settings, timeout_s: float) -> None:
        self._address = address
        self._settings = settings
        self._timeout_s = timeout_s
        self._mode = SecurityMode.INSECURE
        self._facts: CertificateFacts | None = None
        self._greeting: session_pb2.Welcome | RopewalkError | None = None

    def address_(self) -> str:
        """Check HOST:PORT, and say how tasks there show who they are."""
        parse_address(self._address)
        self._mode = security_mode(self._settings, self._address)
        return f"this side uses security={self._mode}"

    def dns(self) -> str:
        host, port = split_address(self._address)
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PeerLostError(
                f"{host} is not known here ({error.strerror or error}): look for a typing mistake, "
                "and whether the Service or the pod has a name yet"
            ) from error
        return ", ".join(dict.fromkeys(str(info[4][0]) for info in infos))

    def port(self) -> str:
        began = time.perf_counter()
        try:
            connect_tcp(self._address, self._timeout_s).close()
        except TimeoutError as error:
            raise PeerLostError(
                f"nothing answered within {self._timeout_s:g} s: a firewall or network policy "
                "drops packets, or the machine is gone"
            ) from error
        except OSError as error:
            raise PeerLostError(
                f"{error.strerror or error}: the task does not run, or listens elsewhere (--host)"
            ) from error
        return f"connected in {(time.perf_counter() - began) * 1000:.1f} ms"

    def encryption(self) -> str:
        """Greet, and judge the rest by how that ends."""
        self._greet()
        if isinstance(self._greeting, AccessError):
            if "speak" in self._greeting.message:
                raise self._greeting
        elif self._mode.encrypts and isinstance(self._greeting, RopewalkError) and not self._facts:
            raise self._greeting  # files of this side, or nobody there who shakes hands
        return "TLS 1.3" if self._mode.encrypts else "none: as it is set here"

    def certificate(self) -> str:
        if not self._mode.encrypts:
            return "none is needed"
        if isinstance(self._greeting, AccessError) and "certificate" in self._greeting.message:
            raise self._greeting
        if self._facts is None:
            return "trusted"
        return f"{self._facts.subject}, until {self._facts.not_after:%Y-%m-%d %H:%M} UTC"

    def identity(self) -> str:
        """Say who this side is to the task: without an answer, nothing was taken."""
        if isinstance(self._greeting, AccessError | ConfigurationError | PeerLostError):
            raise self._greeting
        return {
            SecurityMode.INSECURE: "nobody asks",
            SecurityMode.LOCAL: "both have this user's key",
            SecurityMode.TOKEN: "the token was taken",
            SecurityMode.MTLS: "the certificate was taken",
        }[self._mode]

    def protocol(self) -> str:
        if isinstance(self._greeting, ProtocolMismatchError):
            raise self._greeting
        if isinstance(self._greeting, session_pb2.Welcome):
            theirs = codec.versions_from_wire(self._greeting.versions)
            return f"{theirs.protocol} there and {own_versions().protocol} here"
        return "the same"

    def task(self) -> str:
        if isinstance(self._greeting, session_pb2.Welcome):
            return str(codec.task_from_wire(self._greeting.task))
        raise self._greeting or PeerLostError("no greeting was answered")

    def _greet(self) -> None:
        hello = session_pb2.Hello(service=WHO)
        who = Incarnation(TaskId(DRIVER, 0), 0, self._settings.job_id)
        dialer = Dialer(self._address, self._address, hello, who, self._settings)
        try:
            with contextlib.closing(dialer.tcp(self._timeout_s)) as connection:
                if isinstance(connection.stream, TlsStream):
                    self._facts = read_facts(connection.stream.certificate_bytes())
                self._greeting = dialer.greet(connection, self._timeout_s)
        except RopewalkError as error:
            self._greeting = error
        except OSError as error:
            self._greeting = PeerLostError(
                f"it closed the connection, or did not greet ({error}): is it a task of Ropewalk?"
            )


@click.command("doctor")
@click.argument("address", metavar="HOST:PORT|MODEL_DIR")
@click.option("--timeout-s", default=3.0, show_default=True, help="For each step.")
@caller_options
def doctor_command(address: str, timeout_s: float, **flags: Any) -> None:
    """Walk the way to the task at HOST:PORT, or to the chief of the job of MODEL_DIR, and say which
    step fails and what to do.

    At a chief the tasks of its job are looked at, too: whether all are there and answer, versions,
    clocks, the network between them, limits, disks, checkpoints. The first step that fails is the
    cause.

    The exit code is 0, or that of the error.
    """
    settings = take_settings(flags)
    if Path(address).is_dir():
        from ..screen.status_table import chief_address

        address = chief_address(written_status(address))
    steps = examine(address, settings, timeout_s)
    _show(steps)
    sys.exit(int(next((step.error.exit_code for step in steps if step.error is not None), 0)))


def _show(steps: "list[DoctorStep]") -> None:
    from rich.table import Table

    from ..screen.display import TerminalConsole

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step in steps:
        mark = {True: "ok", False: "FAILS", None: "-"}[step.passed]
        table.add_row(step.name, mark, step.said or "not looked at")
    TerminalConsole().print(table)
