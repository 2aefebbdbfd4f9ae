"""Event files: read back by TensorBoard, written by programs, jobs and the evaluator."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.tensorboard import encoding
from ropewalk.annexes.tensorboard.encoding import event_of
from ropewalk.annexes.tensorboard.writer import EventWriter
from ropewalk.core.errors import ConfigurationError, StorageError

pytest.importorskip("tensorboardX")
pytestmark = pytest.mark.bridges


def read(folder: Path | str) -> Any:
    """TensorBoard's view of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0}).Reload()


def points(folder: Path | str, tag: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in read(folder).Scalars(tag)]


def torch_tensor() -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Parameter(torch.tensor(0.5, dtype=torch.bfloat16))


def jax_array() -> Any:
    return pytest.importorskip("jax").numpy.float32(0.5)


ARRAYS: list[Any] = [
    pytest.param(lambda: np.float16(0.5), id="numpy"),
    pytest.param(jax_array, id="jax"),
    pytest.param(torch_tensor, id="torch"),
    pytest.param(lambda: rw.Variable(0.5, name="half"), id="variable"),
]


@pytest.mark.parametrize("make", ARRAYS)
def test_arrays_of_any_framework_are_scalars(make: Callable[[], Any], tmp_path: Path) -> None:
    writer = rw.summary.create_file_writer(str(tmp_path))
    with writer.as_default(step=3):
        assert rw.summary.scalar("loss", make())
    writer.close()
    assert points(tmp_path, "loss") == [(3, 0.5)]


def test_tensorboard_reads_every_kind(tmp_path: Path) -> None:
    writer = rw.summary.create_file_writer(str(tmp_path / "new" / "run"), filename_suffix=".mine")
    with writer.as_default(step=1):
        rw.summary.histogram("weights", np.array([1.0, 2.0, 2.0, np.nan, np.inf]), buckets=4)
        assert not rw.summary.histogram("nothing", np.array([np.nan]))
        rw.summary.image("digits", np.zeros((2, 8, 8, 1)), max_outputs=1)
        rw.summary.image("photo", np.full((1, 4, 6, 3), 255, np.uint8))
        rw.summary.text("notes", ["# Title", "a paragraph"])
        rw.summary.hparams({"rate": np.float32(0.1), "layers": 2, "relu": True, "kind": "mlp"})
        rw.summary.flush()
    found = read(tmp_path / "new" / "run")
    (weights,) = found.Histograms("weights")
    assert weights.histogram_value.num == 3
    assert weights.histogram_value.max == 2.0
    assert sum(weights.histogram_value.bucket) == 3
    assert {(i.width, i.height) for tag in ("digits", "photo") for i in found.Images(tag)} == {
        (8, 8),
        (6, 4),
    }
    tags = found.Tags()["tensors"]
    assert "notes/text_summary" in tags
    assert b"paragraph" in found.Tensors("notes/text_summary")[0].tensor_proto.string_val[0]
    assert found.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name
    (name,) = os.listdir(tmp_path / "new" / "run")
    assert name.startswith("events.out.tfevents.")
    assert name.endswith(".mine")
    writer.close()


def test_on_an_object_store_every_flush_is_a_part() -> None:
    writer = EventWriter("memory://summaries/run", flush_s=3600)
    for step in range(3):
        writer.add(event_of(step, encoding.scalars({"loss": step})))
        writer.flush()
    writer.flush()  # with nothing new
    writer.close()
    store = fsspec.filesystem("memory")
    assert len(store.ls("/summaries/run")) == 3
    parts = sorted(store.ls("/summaries/run", detail=False))
    data = [store.cat_file(part) for part in parts]
    assert all(b"brain.Event:2" in part for part in data)
    assert all(b"loss" in part for part in data)


def test_a_folder_that_cannot_be_written_is_an_error_at_the_first_summary(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = rw.summary.create_file_writer(str(tmp_path / "file" / "run"))
    with writer.as_default(step=1), pytest.raises(StorageError, match="event files cannot be writ"):
        rw.summary.scalar("loss", 1.0)
    writer = rw.summary.create_file_writer("nosuch://bucket/run")
    with writer.as_default(step=1), pytest.raises(ConfigurationError, match="nosuch"):
        rw.summary.scalar("loss", 1.0)


class Stuck:
    """A file whose disk does not answer until it is let go, or fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.error: OSError | None = None

    def write(self, events: Any) -> None:
        self.entered.set()
        self.go.wait()
        if self.error is not None:
            raise self.error

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_slow_disk_makes_summaries_be_dropped_not_the_program_wait(tmp_path: Path) -> None:
    stuck = Stuck()
    writer = EventWriter(str(tmp_path), max_queue=2, room_s=0.01, open_file=lambda *_: stuck)
    writer.add(b"on its way")
    stuck.entered.wait()
    assert [writer.add(b"event") for _ in range(4)] == [True, True, False, False]
    assert writer.dropped == 2
    stuck.go.set()
    writer.close()


def test_a_disk_that_fails_is_told_of_and_ends_no_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck()
    stuck.error = OSError(28, "No space left on device")
    writer = EventWriter(str(tmp_path), open_file=lambda *_: stuck)
    stuck.go.set()
    writer.add(b"event")
    with pytest.raises(StorageError, match="No space left"):
        writer.flush()
    assert not writer.add(b"another")
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    with pytest.raises(StorageError):
        writer.close()


PROGRAM = """\
import numpy as np, sys
import ropewalk as rw

if rw.training.is_evaluator():
    rw.training.SidecarEvaluator(lambda values: {"loss": float(values["w"][0])}).start()
    sys.exit()
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(1000, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
writer = rw.summary.create_file_writer("mine")
with writer.as_default(step=strategy):
    while strategy.global_step < 300:
        strategy.run(lambda: optimizer.apply_gradients([(np.ones(1000, np.float32), w)]))
        rw.training.report(loss=0.25, total_steps=300)
        assert rw.summary.scalar("value", 1.0) == strategy.is_chief
"""


def test_a_job_writes_its_own_numbers_and_tensorboard_serves_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = ["local", "--plain", "--workers", "1", "--evaluator", "--tensorboard"]
    code, output, errors = processes.run(
        [*processes.ROPEWALK, *command, "--model-dir", "model", "train.py"],
        timeout_s=scaled(150),
        cwd=tmp_path,
    )
    assert code == 0, output + errors
    runs = tmp_path / "model" / "tensorboard"
    assert sorted(os.listdir(runs)) == ["eval", "job"]
    found = read(runs / "job")
    for tag in ("job/steps_per_second", "job/staleness", "ps/0/pushes_per_second", "metrics/loss"):
        assert tag in found.Tags()["scalars"], found.Tags()
    assert found.Scalars("metrics/loss")[-1].value == 0.25
    assert found.Scalars("metrics/loss")[-1].step >= 300
    assert found.Scalars("ps/0/memory_mib")[-1].value == pytest.approx(4000 / 2**20)
    step, value = points(runs / "eval", "metrics/loss")[-1]
    assert step >= 300
    assert value == pytest.approx(-0.1 * step, rel=1e-3)
    assert len(os.listdir(tmp_path / "mine")) == 1  # the chief's
    assert "its numbers: ropewalk tensorboard model" in output
    _serves(tmp_path / "model", ["tensorboard/eval", "tensorboard/job"])


def _serves(folder: Path, runs: list[str]) -> None:
    """``ropewalk tensorboard`` shows these runs, on loopback."""
    process = subprocess.Popen(
        [*processes.ROPEWALK, "tensorboard", str(folder), "--port", "0", "--load_fast=false"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        port = None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if match := re.search(r"http://(?:localhost|127\.0\.0\.1):(\d+)", line):
                port = match[1]
                break
        assert port is not None, "".join(lines)

        def served() -> list[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=10) as answer:
                return sorted(json.load(answer))

        wait_until(lambda: served() == runs, scaled(90), "TensorBoard has read the files")
    finally:
        process.terminate()
        process.communicate(timeout=scaled(20))


def test_what_was_recorded_is_in_the_file_when_the_program_fails(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import ropewalk as rw\n"
        "rw.summary.create_file_writer('run', flush_millis=3600_000).set_as_default(step=1)\n"
        "rw.summary.scalar('loss', 0.5)\n"
        "raise ValueError('on purpose')\n"
    )
    code, _, errors = processes.run([sys.executable, program], timeout_s=scaled(150), cwd=tmp_path)
    assert code == 1
    assert "on purpose" in errors
    assert points(tmp_path / "run", "loss") == [(1, 0.5)]
