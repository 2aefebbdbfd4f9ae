"""Checkpoints at ``s3://…``: against a server that speaks S3, through the real client.

Run by ``make s3``, in an environment of its own: the client of S3 and that of Kubernetes want
different versions of python-dateutil.
"""

import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from helpers.clusters import HandStarted, tf_configs
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint, list_checkpoints

s3fs = pytest.importorskip("s3fs", reason="fsspec's s3 is not installed; `make s3` installs it")
server = pytest.importorskip("moto.server", reason="an S3 server is needed; `make s3` installs it")

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.real_start,
    pytest.mark.filterwarnings("ignore"),  # of the server's libraries
]
RunCli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server on loopback for every process of the tests; the client keeps its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    serving = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    serving.start()
    host, port = serving.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    serving.stop()


@pytest.fixture
def model_dir(endpoint: str) -> str:
    """A folder of a new bucket."""
    bucket = f"models-{uuid4().hex}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/mnist"


def test_a_job_saves_to_s3_and_goes_on_from_there(
    model_dir: str, write_program: Callable[..., str], run_cli: RunCli
) -> None:
    program = write_program()
    arguments = ["run", "--model-dir", model_dir, "--save-every-steps", "40", program]
    first = run_cli(*arguments, "100", "0")
    assert first.returncode == 0, first.stderr
    saved = latest_checkpoint(model_dir)
    assert saved is not None
    assert saved.global_step == 100
    reader = CheckpointReader(saved.path)
    assert reader.manifest.final
    assert sorted(reader.manifest.variables) == ["b", "w"]

    again = run_cli(*arguments, "150", "0")
    assert again.returncode == 0, again.stderr
    assert "begins at 100" in again.stdout
    saved = latest_checkpoint(model_dir)
    assert saved is not None
    assert saved.global_step == 150


def test_every_ps_writes_to_s3_and_the_evaluator_reads_there(
    model_dir: str, write_program: Callable[..., str], no_process_left: str, tmp_path: Path
) -> None:
    configs = tf_configs(chief=1, ps=2, evaluator=1)
    started = HandStarted(
        ["ropewalk", "run", write_program(), "60", "0.01"],
        configs,
        tmp_path,
        ROPEWALK_MODEL_DIR=model_dir,
        ROPEWALK_HEARTBEAT_S="0.1",
        ROPEWALK_SAVE_EVERY_STEPS="20",
        ROPEWALK_KEEP_CHECKPOINTS="2",
    )
    ended = started.wait(90)
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(configs, 0), ended
    assert len(list_checkpoints(model_dir)) <= 2  # older ones are deleted there, too
    assert "error" in ended["evaluator:0"].text
