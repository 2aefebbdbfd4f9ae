"""Start Python processes in milliseconds: fork one that has loaded what they need already.

A task of a cluster takes 0.6 s of a processor before its first line, all of it for imports; the
tests start several hundred. The server is a process that has done the imports and then waits;
:class:`Forked` has the face of ``subprocess.Popen``, and its process is a fork of the server with
the arguments, environment, directory and streams that ``Popen`` would have given it.

A fork is a faithful stand-in as long as nothing that must be a process's own exists before it. So
the server has one thread and has created no gRPC channel or server, and what modules of ours drew
at random when they were imported is drawn anew in each fork. What it cannot stand in for is the
start itself, and that the interpreter takes itself down at the end: tests of these, and ``make
soak``, execute ``python`` as usual.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "TEST_FORK_SERVER"  # in the environment of forked processes, which may start others
OF_RUN = "TEST_FORK_SERVER_OF_RUN"  # where the server of all workers of the run listens
FAMILY = "TEST_FORK_FAMILY"  # what /proc shows for the server and every fork: whose server it is

_LIBRARIES = (
    "ml_dtypes", "numpy", "grpc", "grpc._channel", "google.rpc.status_pb2",
    "grpc_health.v1.health", "hpack", "encodings.idna",
    "pydantic", "pydantic.type_adapter", "pydantic.dataclasses", "click", "rich.console",
    "rich.table", "tenacity", "optree", "safetensors.numpy", "fsspec", "sklearn.datasets",
    "llvmlite.binding",
)  # fmt: skip
_SERVER = str(Path(__file__))  # as a command
# What a task, a command or a program may load; not what loads a framework, nor tests' own tools.
_NOT_OURS = ("ropewalk.annexes.estimator", "ropewalk.testing", "ropewalk.__main__")
_END_ORDERLY = ("ropewalk.", "logging", "weakref", "multiprocessing")
_MAX_REQUEST_BYTES = 1 << 20
_MOST_DRAWN_BYTES = 64
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NAMESPACES = {"mnt": 0x20000, "uts": 0x4000000}  # CLONE_NEWNS, CLONE_NEWUTS
_MS_BIND, _MS_PRIVATE_ALL = 0x1000, 0x44000


# -- the client's side -----------------------------------------------------------------------


class ForkServer:
    """The server, started when it is first needed and ended with this process.

    The workers of a run have one each, so that a worker knows its processes: a fork of the server
    of the run, which alone loads the libraries.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    def address(self) -> str:
        """Where it listens: of this process's own server, or of the one that forked this
        process.
        """
        if inherited := os.environ.get(ADDRESS):
            return inherited
        if self._process is None:
            folder = tempfile.mkdtemp(prefix="fork-server-")
            self._address = f"{folder}/socket"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(self._address)
                listener.listen(64)
                of_run = os.environ.get(OF_RUN)
                kind = partial(Forked, address=of_run) if of_run else subprocess.Popen
                self._process = kind(
                    [sys.executable, _SERVER, str(listener.fileno())],
                    stdin=subprocess.PIPE,  # at its end, the server ends
                    env=_server_environment(),
                    pass_fds=[listener.fileno()],
                )
            atexit.register(self.close)
        return self._address

    def close(self) -> None:
        """End the server."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        process.wait(10)
        os.unlink(self._address)
        os.rmdir(os.path.dirname(self._address))

    @property
    def pid(self) -> int | None:
        """The server's own process, if it runs."""
        return self._process.pid if self._process is not None else None

    def environments(self) -> dict[int, dict[str, str]]:
        """The processes that the server forked and that run now, each with its environment.

        ``/proc`` shows the environment with which the server began for all of them.
        """
        if self._process is None:
            return {}
        with _connect(self._address) as connection:
            connection.send(json.dumps({"list": True}).encode())
            answer: dict[str, dict[str, str]] = json.loads(connection.recv(16 * _MAX_REQUEST_BYTES))
        return {int(pid): environment for pid, environment in answer.items()}


SERVER = ForkServer()


def family() -> str:
    """The family of the forks of this process: always as long, to be written over another."""
    return f"{os.getpid():010}"


def _server_environment() -> dict[str, str]:
    foreign = ("ROPEWALK_", "TEST_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        FAMILY: family(),
        "PYTHONPATH": str(ROOT / "src"),
        # As in tasks that the launcher starts; BLAS reads them when it is loaded.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    connection.connect(address)
    return connection


class Forked(subprocess.Popen[Any]):
    """``subprocess.Popen`` for ``[sys.executable, …]``, by a fork of the server.

    Args:
        host: A machine's name, and the file that is its ``/etc/hosts``, for this process and those
            that it starts.
        address: The server's, if it is not the one of this process.
    """

    def __init__(
        self,
        *arguments: Any,
        host: tuple[str, str] | None = None,
        address: str | None = None,
        **options: Any,
    ) -> None:
        self._host = host
        self._address = address
        super().__init__(*arguments, **options)

    # The names below are those of CPython's Popen, whose every other method works on top of them.
    returncode: Any

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
        creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session, *rest,
    ) -> None:  # fmt: skip
        command = [os.fspath(part) for part in args]
        assert command[0] == sys.executable, command
        assert preexec_fn is None, "a fork cannot do that"
        # -1: inherited. The server's own streams are none of the test's, so these are sent as well.
        streams = [
            given if given != -1 else own
            for given, own in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))
        ]
        address = self._address or SERVER.address()
        request = {
            "command": command[1:],
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "env": {**(os.environ if env is None else env), ADDRESS: address},
            "session": bool(start_new_session),
            "from": os.getpid(),
            "host": self._host,
            "fds": [0, 1, 2, *pass_fds],
        }
        self._ended = _connect(address)  # until the server tells how the process ended
        socket.send_fds(self._ended, [json.dumps(request).encode()], [*streams, *pass_fds])
        self.pid = json.loads(self._ended.recv(100))["pid"]
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _take_status(self, timeout_s: float | None) -> bool:
        """Wait for the server's word about the end; whether it came."""
        # Not under the lock: while one thread waits, another may send a signal, which polls.
        try:
            if self.returncode is None and not select.select([self._ended], [], [], timeout_s)[0]:
                return False
        except (OSError, ValueError):  # another thread has taken the word meanwhile
            pass
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is not None:
                return True
            word = self._ended.recv(100)
            self._ended.close()
            # Without a word the server is gone, and its children with it or nobody's.
            self.returncode = json.loads(word)["code"] if word else 255
            return True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self.returncode if self._take_status(0) else None

    def _wait(self, timeout: float | None) -> int:
        if not self._take_status(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return int(self.returncode)


# ``subprocess`` for the launcher: it starts tasks as forks.
FORKING: Any = types.SimpleNamespace(**{**vars(subprocess), "Popen": Forked})


# -- the server's side -----------------------------------------------------------------------


class _Draws:
    """What modules of ours drew at random when they were imported, to be drawn anew in a fork."""

    _FUNCTIONS = ((secrets, "randbits"), (secrets, "token_bytes"), (secrets, "token_hex"))

    def __init__(self) -> None:
        self._drawn: dict[Any, Callable[[], Any]] = {}  # a value, and how to draw another
        self._places: list[tuple[str, str, Any]] = []  # module, name, value

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note every draw in the meantime."""
        kept = [(module, name, getattr(module, name)) for module, name in self._FUNCTIONS]

        def noting(draw: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*arguments: Any) -> Any:
                value = draw(*arguments)
                self._drawn[value] = lambda: draw(*arguments)
                return value

            return noted

        for module, name, draw in kept:
            setattr(module, name, noting(draw))
        try:
            yield
        finally:
            for module, name, draw in kept:
                setattr(module, name, draw)

    def _names(self) -> list[tuple[str, str, Any]]:
        return [
            (where, name, value)
            for where, module in sys.modules.items()
            if where.startswith("ropewalk.")
            for name, value in vars(module).items()
            if (drawn := _as_drawn(value)) is not None and drawn in self._drawn
        ]

    def find(self) -> None:
        """Note where every value is, for :meth:`draw_anew`: a fork that looked for them in every
        module would copy half of the server's memory.
        """
        self._places = self._names()
        found = {_as_drawn(value) for _, _, value in self._places}
        assert found == set(self._drawn), "a module keeps what it drew where no fork can replace it"

    def draw_anew(self) -> None:
        """Give this process values of its own."""
        anew = {value: draw() for value, draw in self._drawn.items()}
        for where, name, value in self._places:
            if isinstance(value, np.ndarray):
                value[:] = np.frombuffer(anew[value.tobytes()], value.dtype)
            else:
                setattr(sys.modules[where], name, anew[value])


def _as_drawn(value: object) -> int | bytes | str | None:
    """What a module's value was drawn as, if it can have been."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _MOST_DRAWN_BYTES else None
    return value if isinstance(value, int | bytes | str) else None


def _load() -> _Draws:
    draws = _Draws()
    with _own_exit_functions():
        for name in _LIBRARIES:
            importlib.import_module(name)
        with draws.watched():
            _load_ours()
    draws.find()
    importlib.import_module("ropewalk.core.versions").own_versions()  # it keeps them
    tasks = os.listdir("/proc/self/task")
    assert len(tasks) == threading.active_count() == 1, "a fork has one thread; so must the server"
    gc.collect()
    gc.freeze()  # a collection in a child shall not copy the server's memory
    return draws


@contextlib.contextmanager
def _own_exit_functions() -> Iterator[None]:
    """Forget what libraries register in the meantime for the end of the process: they free what
    the system frees anyway, and copy the server's memory for it.
    """
    register, registered = atexit.register, list[tuple[Any, Any, Any]]()

    def noting(function: Any, *arguments: Any, **named: Any) -> Any:
        registered.append((function, arguments, named))
        return function

    setattr(atexit, "register", noting)  # noqa: B010
    try:
        yield
    finally:
        setattr(atexit, "register", register)  # noqa: B010
    for function, arguments, named in registered:
        if str(getattr(function, "__module__", "")).startswith(_END_ORDERLY):
            register(function, *arguments, **named)


def _load_ours() -> None:
    """Every module of ours that needs no framework, and JAX, since the packages of bridges are
    looked into.
    """
    package = importlib.import_module("ropewalk")
    for module in pkgutil.walk_packages(package.__path__, "ropewalk."):
        if "_bridge" in module.name or module.name.startswith(_NOT_OURS):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of an extra or an annex that this tree lacks
            name = error.name or ""
            if name.startswith("ropewalk") and not name.startswith("ropewalk.annexes"):
                raise


class _Child:
    """A forked process: how its end is told, and the environment it was given."""

    def __init__(self, connection: socket.socket, environment: dict[str, str]) -> None:
        self.connection = connection
        self.environment = environment


def _serve(listener: socket.socket) -> list[str] | None:
    """Fork as asked until standard input ends. In a child: the command it shall run."""
    children: dict[int, _Child] = {}
    # Children of children come to us when their parents end, and are to be reaped.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the tests
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
    sources: list[Any] = [0, listener, wake]
    while True:
        ready: list[object] = select.select(sources, [], [])[0]
        if 0 in ready and not os.read(0, 1):
            return None
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
            _reap(children)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        data, fds, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 64)
        if not data:
            connection.close()
            continue
        request = json.loads(data)
        if "list" in request:
            answer = {pid: child.environment for pid, child in children.items()}
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * _MAX_REQUEST_BYTES)
            connection.send(json.dumps(answer).encode())
            connection.close()
            continue
        pid = os.fork()
        if pid == 0:
            # Objects that lie about would close whatever has their number then.
            for held in [
                listener,
                wake,
                woken,
                connection,
                *(c.connection for c in children.values()),
            ]:
                held.detach()
            _become(request, fds)
            command: list[str] = request["command"]
            return command
        for fd in fds:
            os.close(fd)
        children[pid] = _Child(connection, request["env"])
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"pid": pid}).encode())


def _reap(children: dict[int, _Child]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in children:
            continue
        connection = children.pop(pid).connection
        with contextlib.suppress(OSError):  # whoever started it may be gone
            connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
        connection.close()


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Make this fork what ``python`` would be when it reads its first line.

    It ends with the server, which ends with whoever runs the tests, also if that is killed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    _enter_namespaces(request["from"], request["host"])
    wanted: list[int] = request["fds"]
    above = max(wanted) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    os.closerange(0, above)
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd >= above and fd not in moved:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)
    for fd, target in zip(moved, wanted, strict=True):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])


def _enter_namespaces(parent: int, host: tuple[str, str] | None) -> None:
    """Be on the machine on which the parent is, or on one of one's own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: Any, *arguments: Any) -> None:
        if function(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    for name, kind in _NAMESPACES.items():
        theirs = f"/proc/{parent}/ns/{name}"
        if os.readlink(theirs) != os.readlink(f"/proc/self/ns/{name}"):
            with open(theirs) as namespace:
                call(libc.setns, namespace.fileno(), kind)
    if host is not None:
        name, hosts = host
        call(libc.unshare, sum(_NAMESPACES.values()))
        call(libc.mount, b"none", b"/", None, _MS_PRIVATE_ALL, None)
        call(libc.mount, os.fsencode(hosts), b"/etc/hosts", None, _MS_BIND, None)
        socket.sethostname(name)


def _run(command: list[str]) -> None:
    """Run ``[-u] -m module …``, ``[-u] -c code …`` or ``[-u] script …`` as ``python`` would."""
    unbuffered = command[0] == "-u"
    command = command[1:] if unbuffered else command
    _open_streams(unbuffered)
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.exists(customization := os.path.join(folder, "sitecustomize.py")):
            runpy.run_path(customization)
    del sys.modules["__main__"].__dict__["__file__"]
    importlib.import_module("ropewalk.launch.processes.process").__dict__["subprocess"] = FORKING
    if command[0] == "-m":
        sys.path[0] = os.getcwd()
        # Loaded already, so that runpy would warn: the module runs under its own name.
        sys.argv = [command[1], *command[2:]]
        importlib.import_module(command[1]).main()
    elif command[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def _open_streams(unbuffered: bool) -> None:
    def write(fd: int, *, lines: bool, errors: str) -> Any:
        raw = open(fd, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        return io.TextIOWrapper(
            raw, "utf-8", errors, line_buffering=lines, write_through=unbuffered
        )

    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = write(1, lines=os.isatty(1), errors="strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = write(2, lines=True, errors="backslashreplace")  # type: ignore[misc]


def _main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    sources: list[Any] = [0, listener]
    if 0 in select.select(sources, [], [])[0]:
        return  # nobody needs it any more
    draws = _load()
    command = _serve(listener)
    while command is not None and command[0] == _SERVER:
        _show_family(os.environ[FAMILY])
        command = _serve(socket.socket(fileno=int(command[1])))
    if command is None:
        os._exit(0)  # without freeing what others share
    draws.draw_anew()
    _end(_run_to_the_end(command))


def _show_family(name: str) -> None:
    """Write it over the one in the memory that ``/proc`` shows as the environment of this process
    and its forks.
    """
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    at = ctypes.string_at(begin, end - begin).index(f"{FAMILY}=".encode()) + len(FAMILY) + 1
    ctypes.memmove(begin + at, name.encode(), len(name))


def _run_to_the_end(command: list[str]) -> int:
    """The exit code; anything else that the program raises passes through."""
    try:
        _run(command)
    except SystemExit as raised:
        if raised.code is not None and not isinstance(raised.code, int):
            raise
        return int(raised.code or 0)
    return 0


def _end(code: int) -> NoReturn:
    """End as ``python`` does, without freeing what the server loaded: 0.1 s of a processor, for
    every page that lies in both is copied to count its references down.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are waited for
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = code or 120  # as of the interpreter
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    # Not below a function that catches anything: what a program raises ends the process as usual.
    _main()
