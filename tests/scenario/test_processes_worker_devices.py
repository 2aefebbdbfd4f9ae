"""Workers of a coordinator with several devices each, as real processes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.clusters import Ended, HandStarted, tf_configs
from ropewalk.core.errors import JoinTimeoutError

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]

BEGINNING = """
import os, time
import numpy as np
import ropewalk as rw
from ropewalk.distribute import coordinator as coordinators

resolver = rw.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    counts = [int(count) for count in os.environ["DEVICES"].split(",")]
    rw.config.set_logical_cpu_devices(counts[resolver.task_id])
    rw.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
    raise SystemExit
strategy = rw.distribute.ParameterServerStrategy(resolver)
"""

TRAINS = """
coordinator = coordinators.ClusterCoordinator(strategy)
with strategy.scope():
    weights = rw.Variable(np.ones(2, np.float32))
assert strategy.num_replicas_in_sync == 2
optimizer = rw.optimizers.SGD(0.5)
make = coordinator.create_per_worker_dataset(lambda: strategy.distribute_datasets_from_function(
    lambda context: rw.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32))
    .batch(context.get_per_replica_batch_size(2 * strategy.num_replicas_in_sync)).repeat()
))
iterator = iter(make)

def step(batches):
    def replica_fn(batch):
        context = rw.distribute.get_replica_context()
        assert batch.shape == (2,), batch.shape
        # The mean over the global batch: the same update with every number of devices.
        loss = rw.nn.compute_average_loss(np.ones(2, np.float32))
        optimizer.apply_gradients([(np.full(2, loss, np.float32), weights)])
        return np.full(1, context.num_replicas_in_sync)
    results = strategy.run(replica_fn, (next(batches),))
    return [int(each[0]) for each in strategy.experimental_local_results(results)]

found = coordinator.fetch([coordinator.schedule(step, (iterator,)) for _ in range(8)])
assert found == [[2, 2]] * 8, found
assert weights.numpy().tolist() == [-3, -3], weights.numpy()
# What the coordinator's own process computes is on its own device.
assert list(strategy.experimental_local_results(strategy.run(
    lambda: rw.distribute.get_replica_context().num_replicas_in_sync
))) == [1]
"""

FAILS = """
coordinator = coordinators.ClusterCoordinator(strategy)

def again():
    try:
        while True:
            coordinator.schedule(time.sleep, (0.01,))
            coordinator.join()
    except rw.errors.ConfigurationError as error:
        return str(error)

said = again()
assert again() == said  # it is not over when it was heard once
for ask in (coordinator.done, lambda: strategy.num_replicas_in_sync):
    try:
        ask()
    except rw.errors.ConfigurationError as error:
        assert str(error) == said
    else:
        raise AssertionError("nothing was raised")
raise SystemExit(said)
"""


def run(
    folder: Path,
    program: str,
    devices: Sequence[int],
    configs: dict[str, str] | None = None,
) -> dict[str, Ended]:
    (folder / "program.py").write_text(BEGINNING + program)
    job = HandStarted(
        ["python", "program.py"],
        configs or tf_configs(chief=1, ps=1, worker=len(devices)),
        folder,
        DEVICES=",".join(map(str, devices)),
        ROPEWALK_INSECURE="true",
        ROPEWALK_HEARTBEAT_S="0.1",
    )
    return job.wait()


def test_replicas_in_sync_at_the_coordinator_are_those_of_each_worker(tmp_path: Path) -> None:
    ended = run(tmp_path, TRAINS, [2, 2])
    assert [end.code for end in ended.values()] == [0] * 4, ended
    assert "different numbers" not in ended["chief:0"].text  # the chief computes nothing


def test_workers_with_different_numbers_of_devices_are_refused(tmp_path: Path) -> None:
    chief = run(tmp_path, FAILS, [2, 1])["chief:0"]
    assert chief.code != 0
    assert "workers have different numbers of devices: /job:worker/task:" in chief.text
    for each in ("/job:worker/task:0 has 2", "/job:worker/task:1 has 1"):
        assert each in chief.text


def test_replicas_in_sync_are_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    program = """
import dataclasses
runtime = strategy.extended.runtime
settings = runtime.settings.model_copy(update={"join_timeout_s": 0.5})
runtime = dataclasses.replace(runtime, settings=settings)
strategy = rw.distribute.ParameterServerStrategy(runtime=runtime)
coordinators.ClusterCoordinator(strategy)
strategy.num_replicas_in_sync
"""
    configs = tf_configs(chief=1, ps=1, worker=1)
    del configs["worker:0"]
    chief = run(tmp_path, program, [1], configs)["chief:0"]
    assert chief.code == JoinTimeoutError.exit_code
    assert "waited 0.5 s (join_timeout_s) for a worker" in chief.text


def test_a_number_that_was_read_too_early_is_an_error_when_workers_come(tmp_path: Path) -> None:
    early = "assert strategy.num_replicas_in_sync == 1\n"
    chief = run(tmp_path, early + FAILS, [2])["chief:0"]
    assert chief.code != 0
    assert "num_replicas_in_sync was read as 1 before the strategy had a coordinator" in chief.text
    assert "/job:worker/task:0 has 2 devices" in chief.text
