"""Which devices a replica of TPUStrategy has."""

from typing import Any

import pytest

import ropewalk as rw

DeviceAssignment: Any = rw.distribute.experimental.DeviceAssignment


def test_neighbours_belong_together() -> None:
    built = DeviceAssignment.build(computation_shape=[1, 1, 1, 2], num_replicas=3)
    assert built.core_assignment.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (built.num_replicas, built.num_cores_per_replica) == (3, 2)
    assert built.tpu_ordinal(replica=2, logical_core=1) == 5


def test_devices_may_be_named_with_an_axis_of_coordinates_too() -> None:
    given = DeviceAssignment(None, [[[3], [1]]])
    assert given.core_assignment.tolist() == [[3, 1]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([0, 1], r"shape \(2,\)"),
        ([[]], r"shape \(1, 0\)"),
        ([[0, 0]], "twice"),
        ([[-1]], "below 0"),
    ],
    ids=["one axis", "empty", "twice", "negative"],
)
def test_what_cannot_be_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeviceAssignment(None, given)


@pytest.mark.parametrize(
    "arguments",
    [{"computation_stride": [2]}, {"computation_shape": [0]}, {"num_replicas": 0}],
    ids=["stride", "shape", "replicas"],
)
def test_so_is_what_cannot_be_built(arguments: Any) -> None:
    with pytest.raises(ValueError, match="computation_"):
        DeviceAssignment.build(**arguments)


@pytest.mark.annex("jax_bridge")
def test_a_tpu_elsewhere_is_refused() -> None:
    resolver: Any = rw.distribute.cluster_resolver.TPUClusterResolver
    assert resolver("local").cluster_spec().as_dict() == {}
    assert resolver.connect().master() == ""
    with pytest.raises(rw.errors.ConfigurationError, match="machine of the TPU"):
        resolver("my-tpu", zone="europe-west4-a")
