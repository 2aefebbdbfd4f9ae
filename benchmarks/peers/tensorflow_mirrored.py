"""What an empty eager step of TensorFlow's MirroredStrategy costs, on two logical CPUs.

.venv-peers/bin/python -m benchmarks.peers.tensorflow_mirrored
"""

import argparse
import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

from . import harness


def times_ms(budget_s: float) -> list[float]:
    """Each call's time, after a warm-up."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while time.perf_counter() < until:
        start = time.perf_counter()
        strategy.run(lambda: None)
        times.append((time.perf_counter() - start) * 1000)
    return times[len(times) // 10 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=4.0, help="time for one case")
    arguments = parser.parse_args()
    results = [harness.summary("empty-run", times_ms(arguments.budget_s))]
    harness.report(f"tensorflow {tf.__version__}", results, None)


if __name__ == "__main__":
    main()
