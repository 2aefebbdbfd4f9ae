"""Two sides of a connection: only the protocol must agree."""

import importlib.metadata
import platform
from dataclasses import replace

import pytest

from helpers.calls import Calls
from ropewalk.core.errors import ProtocolMismatchError
from ropewalk.core.versions import (
    PROTOCOL,
    Versions,
    check_caller,
    check_protocol,
    own_versions,
    package_version,
)

OURS = Versions(protocol=1, ropewalk="0.1.0", python="3.11.7", numpy="2.1.0")


def test_peers_of_one_protocol_work_together_whatever_else_they_run() -> None:
    check_protocol(OURS, Versions(1, "9.9", "3.99", "4.0"), peer="/job:ps/task:0")


def test_a_peer_of_another_protocol_is_refused_with_both_sides_versions() -> None:
    theirs = replace(OURS, protocol=2, ropewalk="0.2.0")
    with pytest.raises(ProtocolMismatchError) as caught:
        check_protocol(OURS, theirs, peer="/job:ps/task:0")
    text = caught.value.message
    assert text.startswith("/job:ps/task:0 speaks another protocol")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[2:]}
    assert rows["protocol"] == ["1", "2"]
    assert rows["ropewalk"] == ["0.1.0", "0.2.0"]
    assert rows["python"] == ["3.11.7", "3.11.7"]
    assert caught.value.fields == {"peer": "/job:ps/task:0", "here": "1", "there": "2"}


def test_what_a_peer_is_told_names_both_sides() -> None:
    theirs = replace(OURS, protocol=2)
    with pytest.raises(ProtocolMismatchError) as caught:
        check_caller(OURS, theirs, caller="/job:ps/task:0", task="/job:ps/task:1")
    first, head, *_ = caught.value.message.splitlines()
    assert first.startswith("/job:ps/task:0 speaks another protocol than /job:ps/task:1; ")
    assert head.split() == ["/job:ps/task:1", "/job:ps/task:0"]


def test_a_process_knows_what_it_runs() -> None:
    own = own_versions()
    assert own.protocol == PROTOCOL
    assert own.python == platform.python_version()
    assert own.numpy == importlib.metadata.version("numpy")


def test_a_source_tree_that_is_not_installed_says_so(calls: Calls) -> None:
    def lack(name: str) -> None:
        if name == "ropewalk":
            raise importlib.metadata.PackageNotFoundError(name)

    calls.before(importlib.metadata, "version", lack)
    assert package_version() == "source tree"
