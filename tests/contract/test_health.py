"""The standard health service of every server, on its own port too."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from windlass.core.errors import AddressInUseError
from windlass.core.settings import Settings
from windlass.core.task import TaskId
from windlass.launch.processes import free_ports
from windlass.proto.v1 import chief_pb2, chief_pb2_grpc
from windlass.server.chief.server import ChiefServer
from windlass.server.ps.server import PsServer

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
        for service in ("", f"windlass.proto.v1.{name}"):
            assert health(server.port, service) == SERVING
        (server._host if isinstance(server, ChiefServer) else server).drain()
        assert health(server.port) == NOT_SERVING
    finally:
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
