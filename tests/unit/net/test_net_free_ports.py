"""Ports for tasks that are about to start: free, each given out once, and bounded in number."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.core.errors import AddressInUseError
from ropewalk.net.this_machine import _reserved, free_ports


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_ports_are_not_those_the_system_gives_to_clients() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(20) if low <= port <= high]


def test_a_port_in_use_is_passed_over() -> None:
    (first,) = free_ports(1, begin=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        os.close(_reserved.pop())
        assert first not in free_ports(2, begin=0)


def test_a_port_is_given_to_one_of_two_processes() -> None:
    program = """
import sys
from ropewalk.net.this_machine import free_ports
print(*free_ports(3, begin=0), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(word) for word in other.stdout.readline().split()}
        assert len(theirs) == 3
        assert not theirs & set(free_ports(20, begin=0))
        other.communicate()
    assert theirs & set(free_ports(20, begin=0)), (
        "the process has ended, so its ports are free again"
    )


def test_nothing_is_complained_of_at_the_end_of_a_process_that_has_ports() -> None:
    program = "from ropewalk.net.this_machine import free_ports; free_ports(2)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_a_process_holds_a_bounded_number_of_ports() -> None:
    for _ in range(10):
        free_ports(20)
    assert len(_reserved) == 64


def test_too_many_ports_are_an_error_and_not_a_loop(calls: Calls) -> None:
    calls.fail(socket.socket, "bind", OSError())
    with pytest.raises(AddressInUseError, match="no 1 free ports"):
        free_ports(1)
