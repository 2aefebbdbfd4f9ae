"""What this machine can do: the limits that the step of a parameter server is measured against."""

import os
import socket
import statistics
import threading
import time

import numpy as np

from ropewalk.core.arrays.gather_buffer import copy_into

_MIB = 1024 * 1024


def _stream_gb_per_s(
    family: socket.AddressFamily, address: str | tuple[str, int], num_bytes: int
) -> float:
    """What a plain stream socket moves one way, to a process of its own."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen(1)
        child = os.fork()
        if child == 0:  # the receiver: no Python beyond a loop of system calls
            connection, _ = server.accept()
            buffer = bytearray(_MIB)
            while connection.recv_into(buffer):
                pass
            os._exit(0)
        try:
            chunk = bytes(_MIB)
            with socket.socket(family, socket.SOCK_STREAM) as client:
                client.connect(server.getsockname())
                began = time.perf_counter()
                for _ in range(num_bytes // _MIB):
                    client.sendall(chunk)
            os.waitpid(child, 0)
        except BaseException:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise
        return num_bytes / (time.perf_counter() - began) / 1e9


def _copy_gb_per_s(num_bytes: int = 64 * _MIB) -> float:
    """A copy with all cores, counted once: bytes copied per second."""
    source, target = np.ones(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    copy_into(target, source)
    times = []
    for _ in range(15):
        began = time.perf_counter()
        copy_into(target, source)
        times.append(time.perf_counter() - began)
    return num_bytes / statistics.median(times) / 1e9


def measure() -> dict[str, float]:
    """Medians of three runs, in GB/s."""
    assert threading.active_count() == 1, "fork before any thread is started"

    def median(family: socket.AddressFamily, address: str | tuple[str, int]) -> float:
        return statistics.median(_stream_gb_per_s(family, address, 256 * _MIB) for _ in range(3))

    return {
        "socket_gb_per_s": median(socket.AF_INET, ("127.0.0.1", 0)),
        "unix_socket_gb_per_s": median(socket.AF_UNIX, ""),  # the kernel gives it a name
        "memory_copy_gb_per_s": _copy_gb_per_s(),
    }
