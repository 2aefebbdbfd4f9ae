"""Addresses and socket files at which a task listens."""

import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from helpers.hosts import (
    SETTINGS,
    Serve,
    can_call,
    dial,
    dialer_to,
    echoes,
    make_host,
    tcp_sockets,
    works,
)
from helpers.streams import open_descriptors
from helpers.waiting import scaled
from ropewalk.core.errors import (
    AddressInUseError,
    ConfigurationError,
    RefusedError,
)
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.dial import reach
from ropewalk.net.shared_memory import unavailable
from ropewalk.net.sockets import connect_tcp, connect_unix, listen_unix, tcp_stream, unix_stream

pytestmark = pytest.mark.timeout(60)


def test_a_port_that_is_taken_is_an_error_that_names_task_and_address_and_leaves_nothing(
    serve: Serve,
) -> None:
    address = f"127.0.0.1:{serve().port}"
    before = open_descriptors()
    for settings in (SETTINGS["tcp"], Settings(insecure=True)):
        with pytest.raises(AddressInUseError, match=f"/job:ps/task:1 cannot listen at {address}"):
            make_host(settings, TaskId("ps", 1)).start(address)
    assert open_descriptors() <= before


def test_a_port_for_probes_that_is_taken_leaves_nothing(serve: Serve) -> None:
    taken = serve().port
    host = make_host(Settings(health_port=taken))
    with pytest.raises(AddressInUseError, match=f"{taken}.*health probes"):
        host.start("127.0.0.1:0")
    with pytest.raises(ConnectionRefusedError):
        dial(host.port)


def test_a_port_can_be_used_again_at_once(serve: Serve) -> None:
    first = serve()
    assert works(first.port)
    first.stop(0)
    assert works(serve(address=f"127.0.0.1:{first.port}").port)


def test_every_interface_is_that_of_ipv6_too(serve: Serve) -> None:
    host = serve(Settings(host="0.0.0.0", insecure=True, shared_memory=False), "ps-0.svc:0")  # noqa: S104
    for name in ("127.0.0.1", "127.0.0.2", *(["::1"] if socket.has_ipv6 else [])):
        host_name = f"[{name}]" if ":" in name else name
        try:
            stream = connect_tcp(f"{host_name}:{host.port}", scaled(5))
        except OSError:
            assert name == "::1", name  # the machine has none
            continue
        stream.close()
        assert can_call(host.port, host_name)


def test_a_tcp_connection_sends_at_once_and_notices_a_peer_that_vanished() -> None:
    client, ours = tcp_sockets()
    with client, ours:
        for connection in (client, ours):
            connection.settimeout(None)
            tcp_stream(connection)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            # A peer that lives and does not read for long is none that vanished.
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


# -- socket files ------------------------------------------------------------------------------


needs_memory = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@needs_memory
def test_a_folder_gets_a_socket_for_this_user_alone_and_loses_it(
    serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "ps-0.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    host = serve(Settings(insecure=True, socket_dir=str(tmp_path)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    dialer = dialer_to(host.port, Settings(insecure=True))
    with closing(dialer.unix(str(path))) as connection:
        assert str(path) in dialer.greet(connection, scaled(5)).unix_sockets
        assert echoes(connection)
    host.stop(0)
    assert not path.exists()


@needs_memory
def test_a_task_that_was_replaced_leaves_the_socket_of_the_new_one(
    serve: Serve, tmp_path: Path
) -> None:
    old, new = (serve(Settings(insecure=True, socket_dir=str(tmp_path))) for _ in range(2))
    old.stop(0)
    with closing(connect_unix(str(tmp_path / "ps-0.sock"))):
        new.stop(0)
    assert list(tmp_path.iterdir()) == []


@needs_memory
def test_a_session_stays_with_its_task_where_another_job_has_the_socket(
    serve: Serve, tmp_path: Path
) -> None:
    settings = Settings(insecure=True, socket_dir=str(tmp_path))
    first, _second = (serve(settings) for _ in range(2))
    # As seen from another network namespace, where names without a file do not reach.
    first.endpoint.unix_sockets[:] = [str(tmp_path / "ps-0.sock")]
    dialer = dialer_to(first.port, settings)
    found = reach(dialer, settings, scaled(5), peer="ps")
    with closing(found.connection) as connection:
        assert found.choice.kind == "tcp"
        assert "another process has" in found.choice.reason
        assert echoes(connection)


@needs_memory
def test_a_folder_that_cannot_be_used_is_an_error_that_names_it_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    before = open_descriptors()
    for folder in (tmp_path / "none", tmp_path / ("long" * 30)):
        with pytest.raises(ConfigurationError, match=rf"/job:ps/task:0.*{folder.name}.*SOCKET_DIR"):
            make_host(Settings(insecure=True, socket_dir=str(folder))).start("127.0.0.1:0")
    assert open_descriptors() <= before


@pytest.mark.filterwarnings("ignore:.*fork")  # Python's, and JAX's if another test has loaded it
@pytest.mark.needs("root")  # which can be somebody else
def test_another_user_is_neither_let_in_nor_trusted() -> None:
    ours, theirs = (f"@ropewalk-test-{who}-{os.getpid()}" for who in ("ours", "theirs"))
    with listen_unix(ours, 1) as listening, socket.socket(socket.AF_UNIX) as ready:
        ready_ours, ready_theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                os.setuid(65534)
                with listen_unix(theirs, 1), socket.socket(socket.AF_UNIX) as calling:
                    calling.connect(f"\0{ours[1:]}")
                    ready_theirs.sendall(b"1")
                    ready_theirs.recv(1)
            finally:
                os._exit(0)
        assert ready_ours.recv(1) == b"1"
        connection, _ = listening.accept()
        with connection, pytest.raises(PermissionError, match="user 65534"):
            unix_stream(connection)
        with pytest.raises(RefusedError, match="user 65534"):
            connect_unix(theirs)
        ready_ours.sendall(b"1")
        os.waitpid(child, 0)
        for each in (ready_ours, ready_theirs, ready):
            each.close()
