"""What the daemons of a standalone cluster make of their settings."""

from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.annexes.service.daemon import LocalStandaloneCluster, with_absolute_paths
from ropewalk.annexes.service.node import NodeAgent
from ropewalk.core.errors import RopewalkError
from ropewalk.core.settings import Settings


def test_a_cluster_whose_node_breaks_ends_with_the_reason(calls: Calls) -> None:
    calls.fail(NodeAgent, "run", KeyError("a bug"))
    cluster = LocalStandaloneCluster(1, 1, "127.0.0.1:0", Settings())
    cluster.start()
    with pytest.raises(KeyError, match="a bug"):
        cluster.wait()


def test_a_node_that_cannot_tell_its_news_ends(calls: Calls) -> None:
    calls.fail(NodeAgent, "_send_events", KeyError("a bug"))
    cluster = LocalStandaloneCluster(1, 1, "127.0.0.1:0", Settings())
    cluster.start()
    with pytest.raises(RopewalkError, match="cannot be told any more what happens here: KeyError"):
        cluster.wait()


def test_paths_of_a_daemon_hold_in_the_folders_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = with_absolute_paths(Settings(model_dir="models", tls_ca="/ca.pem"))
    assert absolute.model_dir == str(tmp_path / "models")
    assert (absolute.tls_ca, absolute.tls_cert) == ("/ca.pem", "")
    assert with_absolute_paths(Settings(model_dir="s3://bucket/m")).model_dir == "s3://bucket/m"
