"""``fit`` under TensorFlow's MultiWorkerMirroredStrategy and ParameterServerStrategy, two workers.

    .venv-peers/bin/python -m benchmarks.peers.tensorflow_fit mirrored-keras
    .venv-peers/bin/python -m benchmarks.peers.tensorflow_fit mirrored-tf_keras
    .venv-peers/bin/python -m benchmarks.peers.tensorflow_fit ps-tf_keras

Mirrored: two processes, each of which runs the program, as TF_CONFIG says. ps: a coordinator runs
it, beside two workers and two ps, in a process each; that is only in ``tf_keras``, Keras 2, since
Keras 3 has no ParameterServerStrategy. Batches come from ``tf.data``, already in memory.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

from ..fit_model import (
    EPOCHS,
    FIT_CASES,
    WARM_UP,
    WORKERS,
    FitCase,
    arrays,
    compiled,
    result,
    timer,
)  # fmt: skip
from . import harness
from .tensorflow_ps import Cluster, addresses, process

WAYS = ("mirrored-keras", "mirrored-tf_keras", "ps-tf_keras")
TIMEOUT_S = 600


def keras_of(way: str) -> Any:
    """Keras 3 on TensorFlow, or Keras 2."""
    if way.endswith("tf_keras"):
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tf_keras

        return tf_keras
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    return keras


def dataset(case: FitCase, batch: int) -> Any:
    """Batches without end. Each task reads all examples."""
    import tensorflow as tf

    found = tf.data.Dataset.from_tensor_slices(arrays(case)).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    found = found.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return found.with_options(options)


def fit(way: str, strategy: Any, case: FitCase) -> dict[str, Any]:
    """One case under a strategy. An epoch of the coordinator is that of all workers."""
    keras = keras_of(way)
    in_sync = way.startswith("mirrored")
    with strategy.scope():
        model = compiled(keras, case)
    timed = timer(keras)
    history = model.fit(
        dataset(case, case.examples * (WORKERS if in_sync else 1)),
        steps_per_epoch=case.steps * (1 if in_sync else WORKERS),
        epochs=WARM_UP + EPOCHS,
        verbose=0,
        callbacks=[timed],
    )
    return result(case, timed.epochs_s, float(history.history["loss"][-1]))


def mirrored(way: str) -> list[dict[str, Any]]:
    """What one of the two processes does."""
    keras_of(way)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return [fit(way, strategy, case) for case in FIT_CASES]


def run_mirrored(way: str) -> list[dict[str, Any]]:
    """Start both; the figures of the first."""
    cluster = addresses(worker=WORKERS)
    tasks = []
    try:
        for index in range(WORKERS):
            config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            tasks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.peers.tensorflow_fit", way, "--task"],
                    env={**os.environ, "TF_CONFIG": json.dumps(config)},
                    stdout=subprocess.PIPE,
                    stderr=None if index == 0 else subprocess.DEVNULL,
                    text=True,
                )
            )
        printed, _ = tasks[0].communicate(timeout=TIMEOUT_S)
        if tasks[0].returncode:
            raise SystemExit(tasks[0].returncode)
        found: list[dict[str, Any]] = json.loads(printed.strip().splitlines()[-1])
        return found
    finally:
        for task in tasks:
            task.kill()
            task.wait()


def run_ps(way: str) -> list[dict[str, Any]]:
    """Be the coordinator of two ps and two workers."""
    keras_of(way)
    import tensorflow as tf

    cluster: Cluster = addresses(ps=2, worker=WORKERS)
    with ExitStack() as started:
        for role, count in (("ps", 2), ("worker", WORKERS)):
            for index in range(count):
                started.enter_context(process(role, cluster, index))
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({**cluster, **addresses(chief=1)}),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        return [fit(way, strategy, case) for case in FIT_CASES]


def main() -> None:
    way = sys.argv[1]
    if way not in WAYS:
        raise SystemExit(f"{way}: one of {', '.join(WAYS)}")
    harness.end_in_order()
    if sys.argv[2:] == ["--task"]:
        print(json.dumps(mirrored(way)), flush=True)
        os._exit(0)  # the other one may be gone already
    results = run_mirrored(way) if way.startswith("mirrored") else run_ps(way)
    harness.report(f"tensorflow {way}", results, None)
    sys.stdout.flush()
    os._exit(0)  # the coordinator's threads wait for servers that are gone


if __name__ == "__main__":
    main()
