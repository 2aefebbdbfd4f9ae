"""Mistakes in the cluster of workers in sync: ValueErrors, as under TensorFlow, with what to do."""

from typing import Any

import pytest

from ropewalk.cluster.spec import ClusterSpec
from ropewalk.distribute import MultiWorkerMirroredStrategy
from ropewalk.distribute.cluster_resolver import SimpleClusterResolver


def _resolver(jobs: dict[str, Any], index: int = 0, **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(jobs), "", "worker", index, **options)


@pytest.mark.parametrize(
    ("jobs", "index"),
    [
        pytest.param({"worker": {2: "a:1"}}, 2, id="only itself"),
        pytest.param({"worker": {0: "a:1", 2: "b:1"}}, 2, id="with a gap"),
    ],
)
def test_workers_in_sync_need_to_know_all_of_them(jobs: dict[str, Any], index: int) -> None:
    with pytest.raises(ValueError, match=r"dynamic job and lists only a part of the workers"):
        MultiWorkerMirroredStrategy(_resolver(jobs, index, dynamic=True))


def test_a_ps_among_workers_in_sync_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no use for parameter servers"):
        MultiWorkerMirroredStrategy(_resolver({"worker": ["a:1"], "ps": ["b:1"]}))
