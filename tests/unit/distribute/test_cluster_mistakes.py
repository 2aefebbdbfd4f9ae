"""Mistakes in a cluster: ValueErrors, as under TensorFlow, that say what to do."""

from typing import Any

import pytest

import ropewalk as rw
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.cluster_resolver import SimpleClusterResolver


def _resolver(jobs: dict[str, Any], index: int = 0, **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(jobs), "", "worker", index, **options)


def test_a_task_that_the_cluster_does_not_have_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"task.index 1 is out of range"):
        ParameterServerStrategy(_resolver({"worker": ["a:1"], "ps": ["b:1"]}, 1))


@pytest.mark.parametrize(
    "counts", [{"ps": 0}, {"workers": 0, "chief": False}, {"workers": -1}], ids=str
)
def test_a_local_cluster_without_a_ps_or_a_program_is_refused_at_once(counts: Any) -> None:
    with pytest.raises(ValueError, match="at least one ps, and a chief or a worker"):
        rw.testing.LocalCluster(**counts)
