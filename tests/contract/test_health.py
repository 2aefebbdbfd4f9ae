"""The standard health service of every server, on its own port too."""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from windlass.core.errors import AddressInUseError
from windlass.core.settings import Settings
from windlass.core.task import TaskId
from windlass.launch.processes import free_ports
from windlass.server.chief.server import ChiefServer
from windlass.server.ps.server import PsServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(port: int, service: str = "") -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        return int(stub.Check(request, timeout=10).status)


def test_a_ps_is_serving_until_it_drains() -> None:
    server = PsServer(TaskId("ps", 0), Settings())
    server.start("127.0.0.1:0")
    try:
        assert health(server.port) == SERVING
        assert health(server.port, "windlass.proto.v1.ParameterServer") == SERVING
        server.drain()
        assert health(server.port) == NOT_SERVING
    finally:
        server.stop(grace_s=0)


def test_probes_may_have_a_port_of_their_own() -> None:
    [port] = free_ports(1)
    server = PsServer(TaskId("ps", 0), Settings(health_port=port))
    server.start("127.0.0.1:0")
    try:
        assert health(port) == SERVING
    finally:
        server.stop(grace_s=0)


def test_a_chief_is_serving() -> None:
    server = ChiefServer(TaskId("chief", 0), [], Settings())
    server.start("127.0.0.1:0")
    try:
        assert health(server.port, "windlass.proto.v1.Chief") == SERVING
    finally:
        server.stop(grace_s=0)


def test_two_servers_never_share_a_port_silently() -> None:
    first = PsServer(TaskId("ps", 0), Settings())
    first.start("127.0.0.1:0")
    second = PsServer(TaskId("ps", 1), Settings())
    try:
        with pytest.raises(AddressInUseError, match=f"/job:ps/task:1.*127.0.0.1:{first.port}"):
            second.start(f"127.0.0.1:{first.port}")
    finally:
        first.stop(grace_s=0)
        second.stop(grace_s=0)
