"""Where a ParameterServerStrategy's variables are cut and put, in TensorFlow and here.

TensorFlow's cluster is in a process of its own: connecting to one takes away the logical devices
that the other programs of this folder use.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute import partitioners
from ropewalk.testing import LocalCluster

pytestmark = pytest.mark.tensorflow

SHAPES: list[tuple[int, ...]] = [(10, 2), (2, 3), (1,), (), (7,), (5, 1, 2), (12,)]
PARTITIONERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "fixed": lambda names: names.FixedShardsPartitioner(3),
    "min-size": lambda names: names.MinSizePartitioner(min_shard_bytes=16, max_shards=4),
    "max-size": lambda names: names.MaxSizePartitioner(max_shard_bytes=16),
    "tuple": lambda _: lambda shape, dtype: (2,) + (1,) * (len(shape) - 1),
    "too-many": lambda _: lambda shape, dtype: [100] + [1] * (len(shape) - 1),
    "another-axis": lambda _: lambda shape, dtype: [1] * (len(shape) - 1) + [2],
    "no-parts": lambda _: lambda shape, dtype: [0] * len(shape),
    "a-number": lambda _: lambda shape, dtype: 2,
}

# Told on standard input: the shapes, and the source of a partitioner. Replies with a line of JSON
# for each.
THEIRS = """
import json, socket, sys
import tensorflow as tf

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
addresses = ["127.0.0.1:%d" % s.getsockname()[1] for s in sockets]
for s in sockets:
    s.close()
spec = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
servers = [tf.distribute.Server(spec, job, i) for job, i in [("worker", 0), ("ps", 0), ("ps", 1)]]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
names = tf.distribute.experimental.partitioners


def made(partitioner, shapes):
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    told = []
    with strategy.scope():
        for i, shape in enumerate(shapes):
            size = 1
            for extent in shape:
                size *= extent
            value = tf.reshape(tf.range(size, dtype=tf.float32), shape)
            v = tf.Variable(value, name=f"v{i}")
            sharded = type(v).__name__ == "ShardedVariable"
            told.append([
                [p.name.split(":")[0], p.shape.as_list(), p.device.split("task:")[1][0],
                 p.numpy().tolist()]
                for p in (v.variables if sharded else [v])
            ])
    return told


PARTITIONERS = {
    "none": None,
    "fixed": names.FixedShardsPartitioner(3),
    "min-size": names.MinSizePartitioner(min_shard_bytes=16, max_shards=4),
    "max-size": names.MaxSizePartitioner(max_shard_bytes=16),
    "tuple": lambda shape, dtype: (2,) + (1,) * (len(shape) - 1),
    "too-many": lambda shape, dtype: [100] + [1] * (len(shape) - 1),
    "another-axis": lambda shape, dtype: [1] * (len(shape) - 1) + [2],
    "no-parts": lambda shape, dtype: [0] * len(shape),
    "a-number": lambda shape, dtype: 2,
}
answers = {}
for name, partitioner in PARTITIONERS.items():
    try:
        answers[name] = made(partitioner, json.loads(sys.argv[1]))
    except Exception as error:
        answers[name] = type(error).__name__
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    """What TensorFlow makes with every partitioner."""
    result = subprocess.run(
        [sys.executable, "-c", THEIRS, json.dumps(SHAPES)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answers: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answers


def made(partitioner: Any) -> Any:
    """What we make: per variable its parts, with name, shape, ps and value."""
    strategy = rw.distribute.ParameterServerStrategy(
        variable_partitioner=partitioner, placement=rw.distribute.placement.round_robin
    )
    with strategy.scope():
        variables = [
            rw.Variable(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), name=f"v{i}")
            for i, shape in enumerate(SHAPES)
        ]
    return [
        [
            [part.name, list(part.shape), part.device.split("task:")[1][0], part.numpy().tolist()]
            for part in (v.variables if isinstance(v, rw.distribute.ShardedVariable) else [v])
        ]
        for v in variables
    ]


def made_here(name: str) -> Any:
    """What a cluster of ours makes with a partitioner."""
    partitioner = PARTITIONERS[name](partitioners)
    with LocalCluster(workers=1, ps=2, chief=False) as cluster:
        (answer,) = cluster.run(lambda: made(partitioner)).values()
    return answer


@pytest.mark.parametrize("name", ["none", "fixed", "min-size", "max-size", "tuple", "too-many"])
def test_variables_are_cut_named_and_placed_alike(theirs: dict[str, Any], name: str) -> None:
    """One row that is asked to be several parts TensorFlow calls ``v/part_0``, we ``v``: it is not
    cut.
    """
    wanted = theirs[name]
    for i, parts in enumerate(wanted):
        if len(parts) == 1:
            parts[0][0] = f"v{i}"
    assert made_here(name) == wanted


@pytest.mark.parametrize("name", ["another-axis", "no-parts", "a-number"])
def test_what_a_partitioner_must_not_return_is_a_value_error(
    theirs: dict[str, Any], name: str
) -> None:
    """A number TensorFlow takes apart before it looks at it: a TypeError."""
    assert theirs[name] == ("TypeError" if name == "a-number" else "ValueError")
    with pytest.raises(ValueError, match="must return a list/tuple"):
        made_here(name)
