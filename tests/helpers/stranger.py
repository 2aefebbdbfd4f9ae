"""Another user of the machine, as a program: what it can reach of a job, as JSON on its output.

It is started by root, loads what it needs, and becomes another user: the interpreter itself may be
where that one cannot read.
"""

import contextlib
import encodings.idna  # noqa: F401 - loaded by the first connection, otherwise
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from helpers.callers import Caller, Shown, frame, read_frame
from helpers.fuzzing import SERVICES, TUNNEL
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import JobStoppedError
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec, error_table
from ropewalk.net.auth import proof
from ropewalk.net.auth.credentials import ANSWER, since_boot_s
from ropewalk.proto.v1 import session_pb2

USER = 65534
_GREETED = {"chief": "who", "ps": "ps", "worker": "ring"}
_FLOOD = 1000
_LISTENS = 0x10000  # __SO_ACCEPTCON, in the flags of /proc/net/unix


def _became(user: int) -> None:
    own_versions()  # loads more, and keeps it
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def _told(work: Callable[[], object]) -> str:
    try:
        return f"done: {work()!r:.80}"
    except (OSError, grpc.RpcError) as error:
        return type(error).__name__


def _shown(port: int) -> Shown:
    """With a key of one's own."""
    who = Principal("chief", index=0)

    def said(operation: str, _: int) -> str:
        nonce = os.urandom(16).hex()
        purpose = proof.Purpose(operation, f"127.0.0.1:{port}")
        return proof.ask(bytes(32), purpose, who, nonce, since_boot_s())

    return Shown(who, said)


def _callers(port: int) -> list[Caller]:
    shown = [Shown(Principal("chief", index=0)), _shown(port)]
    return [Caller(each, port, False, Path("/tmp")) for each in shown]  # noqa: S108


def unix_sockets() -> list[str]:
    """Names of all listening Unix sockets of this machine that are ours by their names."""
    # Number, references, protocol, flags, type, state, inode, name. A connection that was accepted
    # is in the list as well, under its listener's name.
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = {row[7] for row in rows if len(row) > 7 and int(row[3], 16) & _LISTENS}
    return sorted(name for name in names if "ropewalk" in name)


def _at_unix_sockets(names: list[str]) -> list[str]:
    """What they answer, all asked at once: those of other tests may not answer, for 5 s each."""
    with futures.ThreadPoolExecutor(max_workers=64) as pool:
        return sorted(set(pool.map(_at_a_unix_socket, names)))


def _at_a_unix_socket(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        try:
            connection.connect("\0" + name[1:] if name.startswith("@") else name)
            connection.sendall(b"RPWK" + _callers(1)[0].hello("ps"))
            return "answered" if connection.recv(1) else "closed"
        except OSError as error:
            return "closed" if isinstance(error, ConnectionResetError) else "refused"


def look(key_file: str, ports: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Try everything once; ``ports`` are role, port and process."""
    found: dict[str, Any] = {"user": os.getuid()}
    found["key"] = _told(lambda: Path(key_file).read_text())
    found["key link"] = _told(lambda: os.link(key_file, "/tmp/ropewalk-stolen"))  # noqa: S108
    calls: Counter[str] = Counter()
    greetings: Counter[str] = Counter()
    for role, port, _ in ports:
        for caller in _callers(port):
            with caller:
                service = SERVICES[role]
                for method in service.methods:
                    calls[caller.call(f"/{service.full_name}/{method.name}", b"")] += 1
                if role != "chief":
                    greetings[caller.greet_in_tunnel(_GREETED[role]).verdict] += 1
                for name in (_GREETED[role], "who"):
                    greetings[caller.greet_tcp(name).verdict] += 1
    found["calls"], found["greetings"] = sorted(calls), sorted(greetings)
    names = unix_sockets()
    found["unix"], found["sockets"] = _at_unix_sockets(names), len(names)
    processes = []
    for _, _, pid in ports:
        paths = [f"/proc/{pid}/{name}" for name in ("fd", "map_files")]
        processes += [_told(lambda path=path: os.listdir(path)) for path in paths]  # type: ignore[misc]
        files = [f"/proc/{pid}/{name}" for name in ("mem", "environ", "fd/3")]
        processes += [_told(lambda path=path: open(path, "rb").read(1)) for path in files]  # type: ignore[misc]  # noqa: SIM115
        processes.append(_told(lambda pid=pid: os.kill(pid, signal.SIGTERM)))  # type: ignore[misc]
    found["processes"] = sorted(set(processes))
    shared = [path for path in Path("/dev/shm").iterdir() if "ropewalk" in path.name]  # noqa: S108
    found["shared memory"] = [_told(path.read_bytes) for path in shared]
    return found


def flood(ports: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Connections that say nothing, and calls that are refused."""
    refused: Counter[str] = Counter()
    for role, port, _ in ports:
        silent = []
        for _ in range(_FLOOD):
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection(("127.0.0.1", port), 5))
        caller = _callers(port)[1]
        service = SERVICES[role]
        with caller:
            for number in range(_FLOOD // 5):
                method = service.methods[number % len(service.methods)]
                refused[caller.call(f"/{service.full_name}/{method.name}", b"")] += 1
        for each in silent:
            each.close()
    return dict(refused)


def from_elsewhere(ports: list[tuple[str, int, int]], names: list[str]) -> dict[str, Any]:
    """What a process of another network reaches; ``names`` are abstract Unix sockets."""

    def connect(port: int) -> None:
        socket.create_connection(("127.0.0.1", port), 2).close()

    def connect_unix(name: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect("\0" + name[1:])

    return {
        "tcp": sorted({_told(lambda port=port: connect(port)) for _, port, _ in ports}),  # type: ignore[misc]
        "unix": sorted({_told(lambda name=name: connect_unix(name)) for name in names}),  # type: ignore[misc]
        "seen": unix_sockets(),
    }


class Impostor:
    """Has the port of a task before it starts, answers as if it were that, and notes what it hears.

    Args:
        port: Taken.
        lies: It answers with errors that would end a task in order, and not with success.
    """

    def __init__(self, port: int, lies: bool) -> None:
        self.heard: Counter[str] = Counter()
        self._lies = lies
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((_Anything(self),))
        self._inner = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def called(self, method: str, context: grpc.ServicerContext) -> bytes:
        self.heard[method.rpartition("/")[2]] += 1
        if not self._lies:
            context.send_initial_metadata(((ANSWER, f"{proof.SCHEME} mac={'0' * 64}"),))
            return b""
        code, message, details = error_table.status_of(JobStoppedError("the job is done"))
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(next(each for each in grpc.StatusCode if each.value[0] == code), message)
        raise AssertionError

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        first = b""
        with contextlib.suppress(OSError), connection:
            while len(first) < 4:
                first += connection.recv(4 - len(first)) or bytes(4)
            if first != b"RPWK":
                self._forward(connection, first)
                return
            read_frame(connection)
            self.heard["greeting"] += 1
            connection.sendall(frame(self._answer().SerializeToString()))
            while connection.recv(65536):
                self.heard["more after a greeting"] += 1

    def _answer(self) -> session_pb2.ServerMessage:
        if self._lies:
            return session_pb2.ServerMessage(
                failure=error_table.to_detail(JobStoppedError("it is done"))
            )
        welcome = session_pb2.Welcome(versions=codec.versions_to_wire(own_versions()))
        welcome.authorization = f"{proof.SCHEME} mac={'0' * 64}"
        welcome.max_message_bytes = welcome.max_step_bytes = 2**24
        return session_pb2.ServerMessage(welcome=welcome)

    def _forward(self, client: socket.socket, first: bytes) -> None:
        server = socket.create_connection(("127.0.0.1", self._inner))
        server.sendall(first)

        def back() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(65536):
                    client.sendall(data)

        threading.Thread(target=back, daemon=True).start()
        while data := client.recv(65536):
            server.sendall(data)


class _Anything(grpc.GenericRpcHandler):
    def __init__(self, impostor: Impostor) -> None:
        self._impostor = impostor

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method == TUNNEL:
            self._impostor.heard["tunnel"] += 1
            return None
        return grpc.stream_unary_rpc_method_handler(
            lambda requests, context: self._impostor.called(method, context)
        )


def main() -> None:
    """``stranger COMMAND JSON``"""
    command, arguments = sys.argv[1], json.loads(sys.argv[2])
    if command == "elsewhere":
        print(json.dumps(from_elsewhere(**arguments)), flush=True)
        return
    _became(USER)
    if command == "impostor":
        impostor = Impostor(**arguments)
        print("ready", flush=True)
        sys.stdin.read()  # to the end of the test
        print(json.dumps(impostor.heard), flush=True)
        os._exit(0)
    found = look(**arguments) if command == "look" else flood(**arguments)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
