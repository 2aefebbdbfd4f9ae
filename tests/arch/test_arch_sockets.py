"""Only net opens sockets and channels or shares memory: who may connect is decided in one room."""

import ast
from collections.abc import Iterator

import pytest

from helpers.processes import ROOT
from helpers.sources import sources, tree

_MODULES = frozenset(
    {
        "asyncio",
        "grpc",
        "http",
        "mmap",
        "multiprocessing",
        "socket",
        "socketserver",
        "ssl",
        "urllib",
    }
)
_HARMLESS = {"socket.gethostname", "socket.getaddrinfo", "socket.SOCK_STREAM"}
_ATTRIBUTES = {"memfd_create", "memmap"}
_ALLOWED = {
    # A request in memory is read, and answered there.
    ("telemetry/metrics_page.py", "http.HTTPStatus"),
    ("telemetry/metrics_page.py", "http.server.BaseHTTPRequestHandler"),
    ("telemetry/metrics_page.py", "urllib.parse.urlsplit"),
    # Tasks and queues of the loop that the page's server runs.
    ("annexes/dashboard/feed.py", "asyncio"),
    # Loaded ahead of time, and not used there.
    ("annexes/service/spare.py", "grpc"),
    # Errors of the client of Kubernetes are of its modules; it opens its connections itself.
    ("annexes/kubernetes/requests.py", "ssl"),
    # Stacks for who asks from outside, in a file without a name that this user alone can open.
    ("annexes/diagnosis/task_process.py", "memfd_create"),
    # Memory and files of this process are mapped; no other one has them open.
    ("core/arrays/buffers.py", "mmap"),
    ("annexes/embedding/keyed/disk_block.py", "mmap"),
    ("training/export_formats.py", "memmap"),
    ("training/export_formats.py", "mmap_mode"),
}


def breaches(module: ast.AST) -> Iterator[str]:
    """What a module uses to open sockets or to map memory, by import, by string or by name."""
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                used = [each.name for each in names if (each.name, each.asname) != ("socket", None)]
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                used = [f"{origin}.{each.name}" for each in names]
            case ast.Attribute(value=ast.Name(id="socket"), attr=attribute):
                used = [f"socket.{attribute}"]
            case ast.Attribute(attr=attribute) if attribute in _ATTRIBUTES:
                yield attribute
                continue
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(
                function
            ).endswith(("import_module", "__import__")):
                used = [name]
            case ast.keyword(arg="mmap_mode"):
                yield "mmap_mode"
                continue
            case _:
                continue
        yield from (
            name for name in used if name.partition(".")[0] in _MODULES and name not in _HARMLESS
        )


def test_only_net_opens_sockets_or_shares_memory() -> None:
    outside = {
        (str(path.relative_to(ROOT)), name)
        for path in sources()
        if not path.is_relative_to(ROOT / "net")
        for name in breaches(tree(path))
    }
    assert outside == _ALLOWED


@pytest.mark.parametrize(
    ("code", "name"),
    [
        pytest.param("import mmap", "mmap", id="a module"),
        pytest.param("import socket as s", "socket", id="under another name"),
        pytest.param("from socket import create_server", "socket.create_server", id="a function"),
        pytest.param("import socket\nsocket.socket()", "socket.socket", id="a socket"),
        pytest.param("def f():\n    import grpc", "grpc", id="a late import"),
        pytest.param("import http.server", "http.server", id="a server of the library"),
        pytest.param("import_module('ssl')", "ssl", id="by a string"),
        pytest.param("__import__('asyncio.streams')", "asyncio.streams", id="by a hook"),
        pytest.param(
            "from multiprocessing.shared_memory import SharedMemory",
            "multiprocessing.shared_memory.SharedMemory",
            id="memory with a name",
        ),
        pytest.param("os.memfd_create('x')", "memfd_create", id="memory without a name"),
        pytest.param("np.memmap(path)", "memmap", id="a mapped file"),
        pytest.param("np.load(path, mmap_mode='r')", "mmap_mode", id="a mapped array"),
    ],
)
def test_a_breach_is_noticed(code: str, name: str) -> None:
    assert name in set(breaches(ast.parse(code)))


def test_the_name_of_this_machine_may_be_asked_for_anywhere() -> None:
    assert not set(breaches(ast.parse("import socket\nsocket.gethostname()")))
