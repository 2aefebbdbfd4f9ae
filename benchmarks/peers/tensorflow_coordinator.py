"""Closures of TensorFlow's ClusterCoordinator: one ps, one or two workers, gRPC on loopback.

    .venv-peers/bin/python -m benchmarks.peers.tensorflow_coordinator

An empty ``tf.function`` is scheduled and fetched one by one, and many are scheduled and joined.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack

from .tensorflow_ps import addresses, process

ROUNDS = 5
ONE_BY_ONE, QUEUED = 100, 300


def measure(workers: int) -> dict[str, float]:
    """Medians of the rounds. Unit: milliseconds."""
    import tensorflow as tf

    cluster = addresses(ps=1, worker=workers)
    with ExitStack() as tasks:
        for role, count in (("ps", 1), ("worker", workers)):
            for index in range(count):
                tasks.enter_context(process(role, cluster, index))
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({**cluster, "chief": addresses(chief=1)["chief"]}),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

        empty = tf.function(lambda: tf.constant(0))

        def one_by_one(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                coordinator.schedule(empty).fetch()
            return (time.perf_counter() - began) / count * 1000

        def queued(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                coordinator.schedule(empty)
            coordinator.join()
            return (time.perf_counter() - began) / count * 1000

        queued(20)
        rounds = [(one_by_one(ONE_BY_ONE), queued(QUEUED)) for _ in range(ROUNDS)]
    return {
        "empty, one by one": statistics.median(each[0] for each in rounds),
        "empty, queued": statistics.median(each[1] for each in rounds),
    }


def main() -> None:
    """Measure with one worker, or with as many as are asked for; prints one JSON object."""
    import tensorflow as tf

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    workers = parser.parse_args().workers
    found = measure(workers)
    rows = [{"case": case, "workers": workers, "median_ms": ms} for case, ms in found.items()]
    print(json.dumps({"system": f"tensorflow {tf.__version__}", "results": rows}), flush=True)
    os._exit(0)  # the coordinator's threads wait for servers that are gone


if __name__ == "__main__":
    main()
