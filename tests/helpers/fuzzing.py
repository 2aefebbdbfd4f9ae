"""Nonsense for the ports of tasks: frames and messages made of random bytes, of valid ones that
were changed, and of fields with the values at which numbers break.

What a task needs to let somebody in is an argument (:class:`Credentials`), so the same nonsense is
sent before and after a greeting.
"""

import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ropewalk.cluster.access import principal_of_task
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.core.wire import codec
from ropewalk.net.auth.credentials import AUTHORIZATION, KeyCredentials, key_of
from ropewalk.net.connection import MAGIC
from ropewalk.proto.v1 import chief_pb2, collective_pb2, common_pb2, ps_pb2, session_pb2

from .waiting import scaled

SERVICES = {
    "chief": chief_pb2.DESCRIPTOR.services_by_name["Chief"],
    "ps": ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"],
    "worker": collective_pb2.DESCRIPTOR.services_by_name["Collective"],
}
TUNNEL = "/ropewalk.proto.v1.Tunnel/Open"
_TIMEOUT_S = 5.0
_ANSWER_S = 0.1  # whoever was told of more bytes than come waits for them, and does not answer

NUMBERS = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, -1.0, 1e-308, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "fuzz", "worker", "x" * 5000, "\0", "../../etc/passwd", "漢🙂", "ckpt-0000000001")


@dataclass(frozen=True)
class Credentials:
    """What lets somebody in.

    Attributes:
        who: The task that a greeting and a request speak of. It is none of the live job, so what
            happened to be valid would not touch that.
        metadata: Metadata of a gRPC call, by the method's full name.
        authorization: Authorization of a greeting, by its service.
        is_let_in: Whether servers know by these who it is.
    """

    who: Incarnation = field(default_factory=lambda: Incarnation(TaskId("worker", 900), 1))
    metadata: Callable[[str], Sequence[tuple[str, str]]] = lambda method: ()
    authorization: Callable[[str], str] = lambda service: ""
    is_let_in: bool = False


def key_credentials(port: int, who: Incarnation, key_file: str = "") -> Credentials:
    """Those of a task of this user, on loopback: a proof of the key with each call and greeting.

    Args:
        port: The server's port.
        who: Any task; nobody but the job's own code keeps tasks of one user apart.
        key_file: Path; empty: this user's own.
    """
    shown = KeyCredentials(
        key_of(Settings(key_file=key_file)),
        principal_of_task(who.task, who.job),
        f"127.0.0.1:{port}",
    )
    return Credentials(
        who,
        lambda method: [(AUTHORIZATION, shown.authorization(method))],
        lambda service: shown.authorization(f"session {service}"),
        is_let_in=True,
    )


@dataclass(frozen=True)
class Port:
    """A task's port.

    Attributes:
        role: The task's role: chief, ps or worker.
        session: The service that sessions ask for; empty: it has none.
        pid: Its process's id.
    """

    role: str
    port: int
    pid: int
    session: str = ""

    @property
    def methods(self) -> list[str]:
        """Full names of the unary methods."""
        service = SERVICES[self.role]
        return [f"/{service.full_name}/{method.name}" for method in service.methods]


def hello(service: str, credentials: Credentials) -> bytes:
    """A greeting, as it is on the wire."""
    message = session_pb2.Hello(service=service, max_message_bytes=2**20)
    message.versions.CopyFrom(codec.versions_to_wire(own_versions()))
    getattr(message, "from").CopyFrom(codec.incarnation_to_wire(credentials.who))
    message.ring.CopyFrom(session_pb2.RingMember(ring=7, rank=0, size=2))
    if authorization := credentials.authorization(service):
        message.authorization = authorization
    return MAGIC + frame(session_pb2.ClientMessage(hello=message).SerializeToString())


def frame(message: bytes, payload: bytes = b"", said: int | None = None) -> bytes:
    """A frame; ``said``: how many bytes of payload it announces, if not as many as there are."""
    return (
        struct.pack("<IQ", len(message), len(payload) if said is None else said) + message + payload
    )


class Nonsense:
    """Makes it, always the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, descriptor: Any, depth: int = 3) -> Message:
        """A message whose fields have values at which something may break."""
        message = GetMessageClass(descriptor)()
        draw = self.random
        oneofs = [draw.choice(each.fields) for each in descriptor.oneofs]
        for each in descriptor.fields:
            if each.containing_oneof is not None and each not in oneofs:
                continue
            if not each.containing_oneof and draw.random() < 0.3:
                continue
            self._fill(message, each, depth)
        return message

    def _fill(self, message: Message, each: Any, depth: int) -> None:
        repeated = each.is_repeated if hasattr(each, "is_repeated") else each.label == 3
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        if each.message_type is not None and not depth:
            return
        if is_map:
            self._fill_map(getattr(message, each.name), each.message_type, depth)
            return
        with contextlib.suppress(ValueError, TypeError):  # out of the field's range
            if each.message_type is None:
                values = [self._value(each) for _ in range(self.random.choice((0, 1, 3)))]
                if repeated:
                    getattr(message, each.name).extend(values)
                else:
                    setattr(message, each.name, self._value(each))
            elif repeated:
                for _ in range(self.random.choice((0, 1, 2))):
                    getattr(message, each.name).append(self.message(each.message_type, depth - 1))
            else:
                getattr(message, each.name).CopyFrom(self.message(each.message_type, depth - 1))

    def _fill_map(self, target: Any, entry: Any, depth: int) -> None:
        value = entry.fields_by_name["value"]
        most = 300 if value.message_type is None else 2
        for _ in range(self.random.choice((0, 1, most))):
            key = f"{self.random.choice(TEXTS)[:40]}{self.random.randrange(1000)}"
            if value.message_type is not None:
                target[key].CopyFrom(self.message(value.message_type, depth - 1))
            else:
                with contextlib.suppress(ValueError, TypeError):
                    target[key] = self._value(value)

    def _value(self, each: FieldDescriptor) -> Any:
        kinds = {
            FieldDescriptor.CPPTYPE_DOUBLE: DOUBLES,
            FieldDescriptor.CPPTYPE_FLOAT: DOUBLES,
            FieldDescriptor.CPPTYPE_BOOL: (False, True),
        }
        if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            text = self.random.choice(TEXTS)
            return text.encode() if each.type == FieldDescriptor.TYPE_BYTES else text
        return self.random.choice(kinds.get(each.cpp_type, NUMBERS))

    def changed(self, data: bytes) -> bytes:
        """The same with bytes flipped, cut out, repeated or put in."""
        out = bytearray(data)
        draw = self.random
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(len(out) + 1)
            kind = draw.randrange(4)
            if kind == 0 and at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                del out[at : at + draw.choice((1, 4, 64))]
            elif kind == 2:
                out[at:at] = draw.randbytes(draw.choice((1, 4, 300)))
            else:
                out[at:at] = out[: draw.randrange(1, 40)]
        return bytes(out)

    def noise(self) -> bytes:
        """Of no meaning."""
        return self.random.randbytes(self.random.choice((0, 1, 3, 12, 100, 3000)))

    def client_frame(self) -> bytes:
        """A frame of a session, whole or not."""
        message = self.message(session_pb2.ClientMessage.DESCRIPTOR).SerializeToString()
        if self.random.random() < 0.3:
            message = self.changed(message)
        payload = self.noise() if self.random.random() < 0.5 else b""
        said = self.random.choice((None, None, None, 0, 2**40, 2**64 - 1))
        return frame(message, payload, said)


class Fuzzer:
    """Sends nonsense to a port: ``fuzzer.attack(count)``.

    Args:
        port: Whose.
        credentials: What lets us in.
        seed: Seed of the nonsense.
        leave_out: Names of methods that are not called.
    """

    def __init__(
        self,
        port: Port,
        credentials: Credentials,
        seed: int,
        leave_out: Sequence[str] = (),
    ) -> None:
        self.port = port
        self.nonsense = Nonsense(seed)
        self._credentials = credentials
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port.port}", options)
        self.codes: Counter[str] = Counter()  # what calls came to
        self._methods = [m for m in port.methods if m.rpartition("/")[2] not in leave_out]

    def __enter__(self) -> "Fuzzer":
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def attack(self, count: int) -> None:
        """Send so many frames and messages."""
        kinds = [self.raw, self.begun, self.call]
        if self.port.session:
            kinds += [self.greeted, self.greeted, self.tunnel]
        for _ in range(count):
            self.nonsense.random.choice(kinds)()

    def define(self, name: str) -> None:
        """Define a variable, so that what speaks of it goes further."""
        request = ps_pb2.DefineRequest(
            create=True,
            shards=[
                ps_pb2.ShardDefinition(
                    variable=name,
                    full_shape=[2],
                    dtype=common_pb2.D_TYPE_FLOAT32,
                    num_parts=1,
                    rows=2,
                    initializer=ps_pb2.Initializer(name="zeros"),
                )
            ],
        )
        getattr(request, "from").CopyFrom(codec.incarnation_to_wire(self._credentials.who))
        method = next(each for each in self.port.methods if each.endswith("/Define"))
        stub: Any = self._channel.unary_unary(method)
        metadata = tuple(self._credentials.metadata(method))
        stub(request.SerializeToString(), timeout=scaled(_TIMEOUT_S), metadata=metadata)

    def raw(self) -> None:
        """Bytes of no meaning."""
        self._send(self.nonsense.noise())

    def begun(self) -> None:
        """The beginning of something, and then not what should follow."""
        draw = self.nonsense
        http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBL", 0, 0, 4, 0, 0)
        valid = draw.random.choice((http2, hello(self.port.session or "ps", self._credentials)))
        self._send(draw.changed(valid) if draw.random.random() < 0.8 else valid + draw.noise())

    def greeted(self) -> None:
        """A valid greeting, and frames after it that make no sense."""
        frames = [self.nonsense.client_frame() for _ in range(self.nonsense.random.randrange(1, 4))]
        self._send(hello(self.port.session, self._credentials) + b"".join(frames), answers=True)

    def call(self) -> None:
        """A unary call with a message of strange values, or one that cannot be read."""
        draw = self.nonsense
        method = draw.random.choice(self._methods)
        service = SERVICES[self.port.role]
        message = draw.message(service.methods_by_name[method.rpartition("/")[2]].input_type)
        _claim(message, self._credentials)
        data = message.SerializeToString()
        if draw.random.random() < 0.2:
            data = draw.noise()
        stub: Any = self._channel.unary_unary(method)
        metadata = tuple(self._credentials.metadata(method))
        try:
            stub(data, timeout=_TIMEOUT_S, metadata=metadata)
            self.codes["OK"] += 1
        except grpc.RpcError as error:
            self.codes[error.code().name] += 1

    def tunnel(self) -> None:
        """A tunnel of nonsense; half of them after a greeting."""
        draw = self.nonsense
        chunks = [draw.client_frame() for _ in range(draw.random.randrange(1, 3))]
        if draw.random.random() < 0.5:
            chunks.insert(0, hello(self.port.session, self._credentials)[len(MAGIC) :])
        stub: Any = self._channel.stream_stream(TUNNEL)
        with contextlib.suppress(grpc.RpcError):
            metadata = tuple(self._credentials.metadata(TUNNEL))
            call = stub(iter(chunks), timeout=_ANSWER_S, metadata=metadata)
            for _ in call:
                pass

    def _send(self, data: bytes, *, answers: bool = False) -> None:
        address = "127.0.0.1", self.port.port
        with contextlib.suppress(OSError), socket.create_connection(address, _TIMEOUT_S) as sender:
            sender.sendall(data)
            if answers and self.nonsense.random.random() < 0.5:
                sender.settimeout(_ANSWER_S)
                sender.recv(1000)


def _claim(message: Any, credentials: Credentials) -> None:
    """Have a request speak of a task that is none of the job's: half of what it says is nonsense,
    but nonsense about a live task would rightly be believed. Who is let in speaks as itself.
    """
    who = credentials.who
    for name in ("from", "chief"):
        each = message.DESCRIPTOR.fields_by_name.get(name)
        if each is not None and each.message_type is not None:
            target = getattr(message, name)
            if credentials.is_let_in:
                target.job = who.job
                target.task.CopyFrom(codec.task_to_wire(who.task))
            elif target.task.type in ("chief", "worker") or not target.task.type:
                target.task.CopyFrom(codec.task_to_wire(who.task))
    task = message.DESCRIPTOR.fields_by_name.get("task")
    if task is not None:
        message.task.CopyFrom(codec.task_to_wire(who.task))


@dataclass(frozen=True)
class Cost:
    """What a process takes.

    Attributes:
        memory_bytes: Private memory.
        threads: Its threads.
        files: Its open files.
    """

    memory_bytes: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> "Cost":
        """Of a process, now."""
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(status["RssAnon"].split()[0]) * 1024, int(status["Threads"]), files)

    def is_near(self, before: "Cost", memory_bytes: int, threads: int, files: int) -> bool:
        """Whether it is no more than so much above ``before``."""
        return (
            self.memory_bytes <= before.memory_bytes + memory_bytes
            and self.threads <= before.threads + threads
            and self.files <= before.files + files
        )
