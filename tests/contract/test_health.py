"""The standard health service of every server, on its own port too."""

import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers.waiting import scaled
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import AddressInUseError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.this_machine import free_ports
from ropewalk.net.unary import REPLICATED
from ropewalk.proto.v1 import chief_pb2, chief_pb2_grpc
from ropewalk.server.chief.server import ChiefServer
from ropewalk.server.ps.server import PsServer
from ropewalk.worker.process.probes import Probes

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Make = Callable[[Settings], ChiefServer | PsServer]
SERVERS: dict[str, Make] = {
    "Chief": lambda settings: ChiefServer(TaskId("chief", 0), [], settings),
    "ParameterServer": lambda settings: PsServer(TaskId("ps", 0), settings),
}
every_server = pytest.mark.parametrize("name", SERVERS)


def health(port: int, service: str = "") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        return int(stub.Check(request, timeout=10).status)


@every_server
def test_a_server_is_serving_until_it_drains(name: str) -> None:
    server = SERVERS[name](Settings())
    server.start("127.0.0.1:0")
    try:
        for service in ("", f"ropewalk.proto.v1.{name}"):
            assert health(server.port, service) == SERVING
        (server._host if isinstance(server, ChiefServer) else server).drain()
        assert health(server.port) == NOT_SERVING
    finally:
        server.stop(grace_s=0)


@pytest.mark.annex("replication")
def test_a_ps_is_ready_for_the_next_one_to_stop_once_each_share_has_its_replicas() -> None:
    [port] = free_ports(1)
    server = PsServer(TaskId("ps", 0), Settings(ps_replicas=2, health_port=port))
    server.start("127.0.0.1:0")
    task = TaskId("ps", 0)
    control = PsControl(task, f"127.0.0.1:{server.port}", Settings(), Principal("chief", index=0))

    def attached(process: int) -> tuple[int, int]:
        chief = Incarnation(TaskId("chief", 0), 1)
        control.attach(chief, "chief:1", lease_s=60, timeout_s=5, replicated_process=process)
        return health(port, "readiness"), health(port, REPLICATED)

    with closing(control):
        assert attached(0) == (SERVING, NOT_SERVING)
        assert attached(server.generation + 1) == (SERVING, NOT_SERVING), "of another process"
        assert attached(server.generation) == (SERVING, SERVING)
        # A loss elsewhere is no reason to stop this one, which may have the only replica.
        assert attached(0) == (SERVING, SERVING)
        server.drain()
        assert attached(0) == (NOT_SERVING, NOT_SERVING)
    server.stop(grace_s=0)


@every_server
def test_a_task_without_replicas_is_ready_when_it_serves(name: str) -> None:
    server = SERVERS[name](Settings())
    server.start("127.0.0.1:0")
    assert health(server.port, REPLICATED) == SERVING
    server.stop(grace_s=0)


@every_server
def test_probes_may_have_a_port_of_their_own_that_serves_nothing_else(name: str) -> None:
    [port] = free_ports(1)
    server = SERVERS[name](Settings(health_port=port))
    server.start("127.0.0.1:0")
    try:
        assert health(port) == SERVING
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as caught:
                chief_pb2_grpc.ChiefStub(channel).GetStatus(
                    chief_pb2.GetStatusRequest(), timeout=10
                )
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        server.stop(grace_s=0)


@every_server
def test_two_servers_never_share_a_port_silently(name: str) -> None:
    first, second = (SERVERS[name](Settings()) for _ in range(2))
    first.start("127.0.0.1:0")
    try:
        with pytest.raises(AddressInUseError, match=f"/job:.*/task:0.*127.0.0.1:{first.port}"):
            second.start(f"127.0.0.1:{first.port}")
    finally:
        first.stop(grace_s=0)
        second.stop(grace_s=0)


def alone(task_type: str) -> ResolvedTask:
    """A task whose cluster is on loopback, and which listens at no address from its start."""
    spec = ClusterSpec({"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]})
    chief = TaskId("chief", 0)
    return ResolvedTask(TaskId(task_type, 0), spec, chief, "127.0.0.1:1")


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_a_task_that_serves_nobody_answers_probes_until_it_drains(role: str) -> None:
    [port] = free_ports(1)
    probes = Probes(alone(role), Settings(health_port=port))
    probes.start()
    try:
        assert health(port, "readiness") == SERVING
        for _ in range(100):  # more than the queue of connections that were not accepted holds
            socket.create_connection(("127.0.0.1", port), 5).close()
        probes.drain()
        assert health(port, "readiness") == NOT_SERVING
        with pytest.raises(AddressInUseError, match=f"/job:{role}/task:0 .*:{port} for health"):
            Probes(alone(role), Settings(health_port=port)).start()
    finally:
        probes.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


_KUBELET = """
import socket, sys, time
print("ready", flush=True)
input()
for _ in range(6):
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60).close()
print(time.monotonic(), flush=True)
"""


def test_a_process_whose_interpreter_is_held_up_is_alive_to_a_tcp_probe() -> None:
    [port] = free_ports(1)
    probes = Probes(alone("worker"), Settings(health_port=port))
    probes.start()
    command = [sys.executable, "-I", "-c", _KUBELET, str(port)]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as kubelet:
            assert kubelet.stdin is not None
            assert kubelet.stdout is not None
            assert kubelet.stdout.readline() == "ready\n"
            kubelet.stdin.write("go\n")
            kubelet.stdin.flush()
            # As an extension that computes and does not release the lock; no thread of ours runs.
            ctypes.PyDLL(None).usleep(int(scaled(0.5) * 1e6))
            released = time.monotonic()
            assert float(kubelet.stdout.readline()) < released
    finally:
        probes.stop()


def test_without_a_health_port_nothing_is_opened() -> None:
    probes = Probes(alone("worker"), Settings())
    probes.start()
    probes.drain()
    probes.stop()
