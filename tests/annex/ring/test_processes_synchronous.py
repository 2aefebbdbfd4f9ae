"""Synchronous workers as real processes: they train as one device would, and hear who is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.processes import start as start_process
from helpers.waiting import scaled
from ropewalk.core.settings import child_environment
from ropewalk.net.this_machine import free_ports

pytestmark = pytest.mark.scenario

PROGRAM = """
import sys
import numpy as np
import ropewalk as rw

mode, out = sys.argv[1], sys.argv[2]
rw.config.set_logical_cpu_devices(int(sys.argv[3]))
if mode == "alone":
    strategy = rw.distribute.OneDeviceStrategy("CPU:0")
else:
    options = rw.distribute.CommunicationOptions(timeout_seconds=20)
    strategy = rw.distribute.MultiWorkerMirroredStrategy(communication_options=options)
from sklearn.datasets import load_digits
digits = load_digits()
x = (digits.data[:600] / 16).astype(np.float32)
y = np.eye(10, dtype=np.float32)[digits.target[:600]]
rng = np.random.default_rng(None if mode == "sync" else 0)  # only the first worker's values count
with strategy.scope():
    first = mode == "alone" or strategy.extended.should_checkpoint
    start = np.random.default_rng(0) if first else rng
    w = rw.Variable((start.normal(size=(64, 10)) * 0.01).astype(np.float32), name="w")
    b = rw.Variable(np.zeros(10, np.float32), name="b")
    seen = rw.Variable(0.0, name="seen", synchronization=rw.VariableSynchronization.ON_READ,
                       aggregation=rw.VariableAggregation.SUM)
    steps = rw.Variable(0, name="steps", trainable=False,
                        aggregation=rw.VariableAggregation.ONLY_FIRST_REPLICA)
optimizer = rw.optimizers.Adam(0.01)

def step(batch):
    features, targets = batch
    logits = features @ w.read_value() + b.read_value()
    p = np.exp(logits - logits.max(axis=1, keepdims=True)) if len(logits) else logits
    p = p / p.sum(axis=1, keepdims=True)
    error = (p - targets) / 64
    optimizer.apply_gradients([(features.T @ error, w), (error.sum(axis=0), b)])
    seen.assign_add(np.float32(len(features)))
    steps.assign_add(1)
    return -np.log((p * targets).sum(axis=1))

data = rw.data.from_arrays((x, y), batch_size=64, epochs=2, seed=4)
number = 0
for batch in strategy.experimental_distribute_dataset(data):
    losses = strategy.run(step, args=(batch,))
    loss = strategy.reduce("mean", losses, axis=0)
    number += 1
    print("step", number, flush=True)
total, count = float(seen.numpy()), int(steps.numpy())
everyone = strategy.gather(np.ones((1, 1)) if mode == "alone" else
    strategy.experimental_distribute_values_from_function(lambda c: np.full((1, 1),
    c.replica_id_in_sync_group)), axis=0)
np.savez(out, w=w.numpy(), b=b.numpy(), loss=loss, seen=total, steps=count, everyone=everyone)
"""


def start(
    tmp_path: Path, mode: str, rank: int, ports: list[int], devices: int = 1
) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    if not program.exists():  # the others may be reading it
        program.write_text(PROGRAM)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
    environment = child_environment(TF_CONFIG=json.dumps(config) if ports else "")
    return start_process(
        [sys.executable, program, mode, tmp_path / f"{mode}-{rank}.npz", str(devices)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        if process.stderr is not None and not process.stderr.closed:
            print(process.pid, *process.communicate(timeout=scaled(10)))  # shown if the test fails


@pytest.mark.parametrize("devices", [1, 2])
def test_three_workers_train_as_one_device_does(
    tmp_path: Path, processes: list[subprocess.Popen[str]], devices: int
) -> None:
    processes.append(start(tmp_path, "alone", 0, []))
    _, errors = processes[0].communicate(timeout=scaled(60))
    assert processes[0].returncode == 0, errors
    expected = np.load(tmp_path / "alone-0.npz")
    ports = free_ports(3)
    processes.extend(start(tmp_path, "sync", rank, ports, devices) for rank in range(3))
    for process in processes[1:]:
        _, errors = process.communicate(timeout=scaled(60))
        assert process.returncode == 0, errors
    found = [np.load(tmp_path / f"sync-{rank}.npz") for rank in range(3)]
    for worker in found:
        # Copies are equal to the bit; to one device, float32 sums in another order.
        np.testing.assert_array_equal(worker["w"], found[0]["w"])
        np.testing.assert_allclose(worker["w"], expected["w"], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(worker["b"], expected["b"], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(worker["loss"], expected["loss"], rtol=1e-4)
        assert float(worker["seen"]) == float(expected["seen"]) == 1200
        assert int(worker["steps"]) == int(expected["steps"]) == 20
        np.testing.assert_array_equal(worker["everyone"][:, 0], np.arange(3 * devices))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
def test_every_survivor_names_the_worker_that_is_lost(
    tmp_path: Path, processes: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    ports = free_ports(3)
    environment = os.environ.get("ROPEWALK_LEASE_S")
    os.environ["ROPEWALK_LEASE_S"] = "2"
    try:
        processes.extend(start(tmp_path, "sync", rank, ports) for rank in range(3))
    finally:
        if environment is None:
            del os.environ["ROPEWALK_LEASE_S"]
        else:
            os.environ["ROPEWALK_LEASE_S"] = environment
    output = processes[1].stdout
    assert output is not None
    assert output.readline() == "step 1\n"
    processes[1].send_signal(number)
    for rank in (0, 2):
        _, errors = processes[rank].communicate(timeout=scaled(40))
        assert processes[rank].returncode != 0
        assert "/job:worker/task:1 at 127.0.0.1" in errors
        assert "is lost" in errors


HOLDS = """
import ctypes
import sys
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
group = strategy.extended.group
group.all_reduce(np.ones(1000))
if group.rank == int(sys.argv[1]):  # as an extension that does not release the interpreter's lock
    print("holds the lock", flush=True)
    ctypes.PyDLL(None).usleep(9_000_000)
assert group.all_reduce(np.ones(1000))[0] == group.size
print(group.transport)
"""


@pytest.mark.parametrize(
    ("transport", "held"),
    [
        pytest.param("shm", 1, id="shm"),
        pytest.param("tcp", 1, id="tcp", marks=pytest.mark.soak),
        pytest.param("shm", 0, id="the one that leads the job"),
    ],
)
def test_a_worker_whose_interpreter_is_held_up_is_not_lost(
    tmp_path: Path, processes: list[subprocess.Popen[str]], transport: str, held: int
) -> None:
    program = tmp_path / "holds.py"
    program.write_text(HOLDS)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(3)]}
    for rank in range(3):
        config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        environment = child_environment(
            TF_CONFIG=json.dumps(config),
            ROPEWALK_SHARED_MEMORY="1" if transport == "shm" else "0",
            # Two probes of 3 s, each a lease after there was news; 2 s for the one that leads.
            ROPEWALK_LEASE_S="1",
            ROPEWALK_RECONNECT_TIMEOUT_S="1",
        )
        processes.append(
            start_process(
                [sys.executable, program, str(held)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = []
    for process in processes:
        output, errors = process.communicate(timeout=scaled(60))
        assert process.returncode == 0, errors
        assert output.splitlines()[-1] == transport
        said.append(errors)
    assert f"worker/task:{held} does not answer, and its process is there" in said[2]


LEAVES = """
import threading
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
group = strategy.extended.group
group.all_reduce(np.ones(1000))
if group.rank == 1:
    threading.Event().wait(1.5)  # the first worker has ended by then
values = group.broadcast(np.full(3_000_000, group.rank, np.float32), root=0)
assert values[0] == values[-1] == 0
print(group.transport)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp", "grpc"])
def test_programs_that_do_not_close_their_strategy_end_and_lose_nothing(
    tmp_path: Path, processes: list[subprocess.Popen[str]], transport: str
) -> None:
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(3)]}
    for rank in range(3):
        config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
        environment = child_environment(
            TF_CONFIG=json.dumps(config),
            ROPEWALK_SHARED_MEMORY="1" if transport == "shm" else "0",
            ROPEWALK_TCP_SESSIONS="0" if transport == "grpc" else "1",
        )
        processes.append(
            start_process(
                [sys.executable, program],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        output, errors = process.communicate(timeout=scaled(40))
        assert process.returncode == 0, errors
        assert output == f"{transport}\n"
