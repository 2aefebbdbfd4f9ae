"""A job's numbers in the real clients' own stores on this machine, without any server."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.waiting import scaled

pytest.importorskip("mlflow")
pytest.importorskip("wandb")
pytestmark = pytest.mark.bridges

PROGRAM = """\
import sys

import numpy as np
import ropewalk as rw

if rw.training.is_evaluator():
    rw.training.SidecarEvaluator(lambda values: {"error": float(values["w"][0])}).start()
    sys.exit()
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(10, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
last = int(sys.argv[1])
while strategy.global_step < last:
    strategy.run(lambda: optimizer.apply_gradients([(np.ones(10, np.float32), w)]))
    rw.training.report(**{"loss": 0.25, "top-5 (%)": 0.75}, total_steps=last)
"""


def train(folder: Path, last: int) -> str:
    store = {
        "MLFLOW_TRACKING_URI": f"file:{folder / 'mlruns'}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
    }
    command = ["local", "--plain", "--workers", "1", "--evaluator", "--track", "mlflow,wandb"]
    code, output, errors = processes.run(
        [*processes.ROPEWALK, *command, "--model-dir", "model", "train.py", str(last)],
        timeout_s=scaled(150),
        cwd=folder,
        env=os.environ | store,
    )
    assert code == 0, output + errors
    return output + errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    (folder / "train.py").write_text(PROGRAM)
    train(folder, 300)
    train(folder, 500)  # goes on from the checkpoint
    return folder


def test_mlflow_has_one_run_of_a_job_and_of_the_one_that_resumed_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(f"file:{trained / 'mlruns'}")
    experiment = client.get_experiment_by_name("ropewalk")
    assert experiment is not None
    evaluation, run = sorted(
        client.search_runs([experiment.experiment_id]),
        key=lambda run: "metrics/error" not in run.data.metrics,
    )
    assert run.info.status == "FINISHED"
    assert run.data.params["num_worker"] == run.data.params["num_ps"] == "1"
    points = client.get_metric_history(run.info.run_id, "metrics/loss")
    assert {point.value for point in points} == {0.25}
    assert [point.step for point in points if point.step >= 500]
    assert [point.step for point in points if 300 <= point.step < 500]
    assert "metrics/top-5 ___" in run.data.metrics
    assert evaluation.data.metrics["metrics/error"] == pytest.approx(-50, rel=0.1)
    assert evaluation.info.status == "FINISHED"
    assert (trained / "model" / "run-of-mlflow").read_text() == run.info.run_id


def test_the_files_of_weights_and_biases_have_every_number_and_the_step(trained: Path) -> None:
    runs = sorted((trained / "wandb").glob("offline-run-*"))
    # One run of the job and one of its evaluator, each in two files.
    assert len(runs) == 4
    assert len({run.name.rpartition("-")[2] for run in runs}) == 2
    rows = [row for run in runs for row in history(next(run.glob("*.wandb")))]
    losses = [row for row in rows if "metrics/loss" in row]
    assert {row["metrics/loss"] for row in losses} == {0.25}
    assert [row for row in losses if row["global_step"] >= 500]
    assert any("metrics/error" in row for row in rows)
    assert any("job/steps_per_second" in row for row in rows)


def history(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that the client syncs later."""
    from wandb.proto import wandb_internal_pb2

    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }


def records(data: bytes) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it: blocks of 32 KiB, the first after a header."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := -at % 32_768) and left < 7:
            at += left
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""
