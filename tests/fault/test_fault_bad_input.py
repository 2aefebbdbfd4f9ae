"""What bad input gets, as the user sees it: an exit code, and words that name the culprit."""

import contextlib
import errno
import json
import shutil
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ropewalk
from helpers.calls import Calls
from ropewalk.core.checkpoint import latest_checkpoint, list_checkpoints
from ropewalk.core.checkpoint.folder import Folder
from ropewalk.core.checkpoint.storage import storage_error
from ropewalk.core.errors import StorageError
from ropewalk.net.this_machine import free_ports
from ropewalk.server.ps import servicer

Cli = Callable[..., subprocess.CompletedProcess[str]]
WriteProgram = Callable[..., str]

JOIN_TIMEOUT_S = 20  # of every job here; its answer must come sooner
QUICK = ["--heartbeat-s", "0.1", "--join-timeout-s", str(JOIN_TIMEOUT_S)]


@pytest.fixture
def run(run_cli: Cli, tmp_path: Path) -> Iterator[Cli]:
    """``run_cli``, bounded by the join timeout; no half-written file may be left."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_cli(*arguments, timeout_s=JOIN_TIMEOUT_S, **more)

    yield run
    for checkpoint in tmp_path.rglob("ckpt-*"):
        assert (checkpoint / "manifest.json").is_file(), f"{checkpoint} is half a checkpoint"


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The message of an error found before the program ran: one line, no traceback."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("ropewalk: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


# -- before anything starts ------------------------------------------------------------------

CLUSTER = {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223", "127.0.0.1:2224"]}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param("{'cluster': {}}", ["TF_CONFIG is not JSON", "line 1"], id="not JSON"),
        pytest.param({"cluster": CLUSTER}, ["no task", '"index"'], id="no task"),
        pytest.param(
            {"cluster": CLUSTER, "task": {"type": "worker", "index": 5}},
            ["task.index 5 is out of range", "has 2 tasks"],
            id="index out of range",
        ),
        pytest.param(
            {
                "cluster": CLUSTER | {"chief": ["127.0.0.1:2223"]},
                "task": {"type": "worker", "index": 0},
            },
            ["/job:worker/task:0", "/job:chief/task:0", "same address '127.0.0.1:2223'"],
            id="duplicated address",
        ),
    ],
)
def test_a_tf_config_that_cannot_be_is_refused(
    run: Cli, write_program: WriteProgram, config: object, words: list[str]
) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    result = run("run", write_program(), "10", "0", TF_CONFIG=text)
    assert result.returncode == 2, result.stderr
    message = one_line(result)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["run", "gone.py"], ["gone.py does not exist"], id="script of run"),
        pytest.param(["local", "gone.py"], ["gone.py does not exist"], id="script of local"),
        pytest.param(["run", "--fast", "x.py"], ["No such option", "--fast"], id="flag of run"),
        pytest.param(["local", "--fast", "x.py"], ["No such option", "--fast"], id="flag of local"),
        pytest.param(["ps", "--lease-s", "0", "--index", "0"], ["--lease-s", "0"], id="setting"),
    ],
)
def test_wrong_usage_is_refused_and_nothing_is_written(
    run: Cli, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_serving_other_machines_must_be_asked_for(run: Cli) -> None:
    config = {"cluster": {"ps": ["train-ps-0:2222"]}, "task": {"type": "ps", "index": 0}}
    with socket.socket() as taken:  # whether the port is free or not
        with contextlib.suppress(OSError):  # another test has it
            taken.bind(("127.0.0.1", 2222))
            taken.listen()
        result = run("ps", TF_CONFIG=json.dumps(config))
    assert result.returncode == 2, result.stderr
    message = one_line(result)
    assert all(word in message for word in ("train-ps-0:2222", "--insecure", "127.0.0.1")), message


@pytest.mark.parametrize("role", ["ps", "chief"])
def test_a_port_in_use_is_named(run: Cli, write_program: WriteProgram, role: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (free,) = free_ports(1)
        cluster = {"ps": [f"127.0.0.1:{free}"], "chief": [f"127.0.0.1:{free + 1}"]}
        cluster[role] = [address]
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
        rest = [] if role == "ps" else [*QUICK, write_program(), "10", "0"]
        result = run(role, *rest, TF_CONFIG=config)
    assert result.returncode == 3, result.stderr
    message = one_line(result)
    assert f"/job:{role}/task:0" in message
    assert address in message


@pytest.mark.scenario
def test_a_ps_that_never_answers_is_named_after_the_join_timeout(
    run: Cli, write_program: WriteProgram
) -> None:
    # It accepts connections and says nothing, as a hung process or a wrong port would.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (free,) = free_ports(1)
        cluster = {"ps": [address], "chief": [f"127.0.0.1:{free}"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
        began = time.monotonic()
        result = run("chief", "--join-timeout-s", "3", write_program(), "10", "0", TF_CONFIG=config)
        took_s = time.monotonic() - began
    assert result.returncode == 140, result.stderr
    message = one_line(result)
    assert "/job:ps/task:0" in message
    assert address in message
    assert "join_timeout_s" in message
    # The timeout, a try of 2 s under way, and two calls of 2 s each to tell the ps that it is over.
    assert took_s < 3 + 2 + 2 * 2 + 3


# -- programs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(
            "np.zeros(4, np.float32), name",
            "np.zeros(4 if rw.distribute.get_strategy().is_chief else 5, np.float32), name",
            ["float32[4]", "float32[5]"],
            id="shape",
        ),
        pytest.param(
            "np.zeros(4, np.float32), name",
            "np.zeros(4, 'f4' if rw.distribute.get_strategy().is_chief else 'f8'), name",
            ["float32", "float64"],
            id="dtype",
        ),
    ],
)
def test_two_workers_that_define_a_variable_differently_are_both_named(
    run: Cli, write_program: WriteProgram, old: str, new: str, words: list[str]
) -> None:
    program = write_program(replace={old: new})
    result = run(
        "local", "--plain", *QUICK, "--no-chief", "--workers", "2", program, "1000000", "0.01"
    )
    assert result.returncode == 5, result.stdout
    named = result.stdout[result.stdout.index("worker:1 failed first") :]
    for word in ["'w'", "/job:worker/task:0", "/job:worker/task:1", *words]:
        assert word in named, result.stdout


NAN = {"(x.T @ rest / 8, w)": "(x.T @ rest * np.nan, w)"}


def test_a_program_of_nan_gradients_is_ended(
    run: Cli, write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(replace=NAN)
    result = run("run", "--nonfinite-limit", "4", "--model-dir", "model", program, "100", "0")
    assert result.returncode == 6, result.stderr
    for word in ("'w'", "4 steps in a row", "/job:chief/task:0", "ROPEWALK_NONFINITE_GRADIENTS"):
        assert word in result.stderr
    # Nothing was applied, so there is nothing to save; but what became of the job is told.
    assert list_checkpoints(str(tmp_path / "model")) == []
    told = run("status", "model", COLUMNS="200")
    assert "job failed" in told.stdout
    status = json.loads((tmp_path / "model" / "status.json").read_text())
    chief = next(item for item in status["tasks"] if item["task"]["type"] == "chief")
    assert chief["report"]["refused_pushes"] == 4
    assert chief["report"]["pushes"] == 0


def test_single_nan_gradients_are_refused_counted_and_survived(
    run: Cli, write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(
        replace={"(x.T @ rest / 8, w)": "(x.T @ rest / (8 if count % 10 else np.nan), w)"}
    )
    result = run("run", "--nonfinite-limit", "3", "--model-dir", "model", program, "50", "0")
    assert result.returncode == 0, result.stderr
    assert "refused a push: the gradient of 'w' is NaN or infinite" in result.stderr
    status = json.loads((tmp_path / "model" / "status.json").read_text())
    chief = next(item for item in status["tasks"] if item["task"]["type"] == "chief")
    # Steps 0, 10, 20 … are refused; 50 applied ones take 5 or 6 of those.
    assert chief["report"]["refused_pushes"] in (5, 6)
    assert status["global_step"] == 50


def test_nan_gradients_may_be_allowed(run: Cli, write_program: WriteProgram) -> None:
    program = write_program("assert np.isnan(w.numpy()).all()", replace=NAN)
    result = run("run", "--nonfinite-gradients", "allow", program, "30", "0")
    assert result.returncode == 0, result.stderr


def test_a_variable_of_no_scope_cannot_be_trained(run: Cli, write_program: WriteProgram) -> None:
    stray = "rw.Variable(np.zeros(4, np.float32), name='stray')"
    program = write_program(
        replace={
            "    optimizer = rw": f"    stray = {stray}\n    optimizer = rw",
            "(x.T @ rest / 8, w)": "(x.T @ rest / 8, w), (x.T @ rest / 8, stray)",
        }
    )
    result = run("run", program, "10", "0")
    assert result.returncode == 1, result.stderr
    assert "'stray' was created outside this strategy's scope" in result.stderr
    assert "with strategy.scope():" in result.stderr


def test_a_step_over_the_limit_is_refused_with_both_numbers(
    run: Cli, write_program: WriteProgram, tmp_path: Path
) -> None:
    # w and b travel in one step: 4 * (2000 + 1) bytes. Assigning the first value is one already.
    program = write_program(replace={"rw.Variable(np.zeros(4,": "rw.Variable(np.zeros(2000,"})
    result = run("run", "--max-step-bytes", "4096", "--model-dir", "model", program, "10", "0")
    assert result.returncode == 6, result.stderr
    for word in ("max_step_bytes=4096", "8004", "/job:ps/task:0", "ROPEWALK_MAX_STEP_BYTES"):
        assert word in result.stderr
    assert list_checkpoints(str(tmp_path / "model")) == []


def test_a_script_that_raises_on_one_worker_ends_the_job_with_its_code(
    run: Cli, write_program: WriteProgram
) -> None:
    program = write_program("if me == 'worker:1':\n    raise ValueError('no good')")
    result = run("local", "--plain", *QUICK, program, "1000000", "0.01")
    assert result.returncode == 1
    assert "worker:0 failed first: exit code 1" in result.stdout
    assert "    ValueError: no good" in result.stdout


# -- checkpoints -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with one good checkpoint, made once, in this process."""
    import numpy as np

    folder = tmp_path_factory.mktemp("trained") / "model"

    rw: Any = ropewalk  # a class made by its metaclass is more than mypy can follow

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable(np.zeros(4, np.float32), name="w")
            rw.Variable(np.zeros((), np.float32), name="b")
        optimizer = rw.optimizers.SGD(0.05)
        strategy.run(lambda: optimizer.apply_gradients([(np.ones(4, np.float32), w)]))

    with rw.testing.LocalCluster(workers=0, ps=1, model_dir=str(folder)) as cluster:
        cluster.run(train)
    return folder


def truncated(checkpoint: Path) -> Path:
    file = checkpoint / "ps-0.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    return file


def altered(checkpoint: Path) -> Path:
    file = checkpoint / "ps-0.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return file


def foreign_manifest(checkpoint: Path) -> Path:
    file = checkpoint / "manifest.json"
    file.write_text('{"format": "somebody-elses"}')
    return file


def foreign_tensors(checkpoint: Path) -> Path:
    file = checkpoint / "ps-0.safetensors"
    file.write_bytes(b"not a tensor in sight")
    return file


@pytest.mark.parametrize(
    "damage",
    [truncated, altered, foreign_manifest, foreign_tensors],
    ids=lambda damage: str(damage.__name__).replace("_", " "),
)
def test_a_damaged_checkpoint_is_not_resumed_from(
    run: Cli,
    write_program: WriteProgram,
    trained: Path,
    tmp_path: Path,
    damage: Callable[[Path], Path],
) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(trained, model_dir)
    found = latest_checkpoint(str(model_dir))
    assert found is not None
    file = damage(Path(found.path))
    result = run("run", "--model-dir", str(model_dir), write_program(), "10", "0")
    assert result.returncode == 4, result.stderr
    assert str(file) in result.stderr
    assert "begins at" not in result.stdout
    # It is left as it was, for whoever can mend it, and nothing is put beside it.
    assert [info.path for info in list_checkpoints(str(model_dir))] == [found.path]


def test_a_local_job_tells_that_its_checkpoint_is_damaged(
    run: Cli, write_program: WriteProgram, trained: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(trained, model_dir)
    found = latest_checkpoint(str(model_dir))
    assert found is not None
    file = truncated(Path(found.path))
    result = run(
        "local", "--plain", *QUICK, "--model-dir", str(model_dir), write_program(), "10", "0"
    )
    assert result.returncode == 4, result.stdout
    named = result.stdout[result.stdout.index("chief:0 failed first: exit code 4") :]
    assert str(file) in named


def test_a_checkpoint_of_another_shape_names_the_variable(
    run: Cli, write_program: WriteProgram, trained: Path, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(trained, model_dir)
    program = write_program(replace={"rw.Variable(np.zeros(4,": "rw.Variable(np.zeros(6,"})
    result = run("run", "--model-dir", str(model_dir), program, "10", "0")
    assert result.returncode == 4, result.stderr
    for word in ("'w'", "float32[4]", "float32[6]"):
        assert word in result.stderr


# -- a model directory that cannot be written ------------------------------------------------


@pytest.mark.parametrize("command", [["run"], ["local", "--plain"]], ids=["run", "local"])
def test_a_model_directory_that_is_a_file_is_refused_before_training(
    run: Cli, write_program: WriteProgram, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "model").touch()
    result = run(*command, "--model-dir", str(tmp_path / "model"), write_program(), "10", "0")
    assert result.returncode == 7, result.stderr
    message = one_line(result)
    assert "cannot write to" in message
    assert "it is a file, not a folder" in message
    assert "job.json" not in result.stderr
    assert len(result.stderr.splitlines()) <= 5, result.stderr


def test_a_ps_that_cannot_write_is_named_before_training(tmp_path: Path, calls: Calls) -> None:
    def refuse(folder: Folder, probe: str, writer: str) -> None:
        raise storage_error(OSError(errno.EACCES, ""), folder.url, writer)

    calls.before(servicer, "write_probe", refuse)
    ran: list[bool] = []
    words = r"^/job:ps/task:0 cannot write to .*permission denied"
    with (
        ropewalk.testing.LocalCluster(workers=0, model_dir=str(tmp_path / "model")) as cluster,
        pytest.raises(StorageError, match=words),
    ):
        cluster.run(lambda: ran.append(True))
    assert not ran


def test_a_full_disk_at_the_last_save_asks_for_no_restart(run: Cli, tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: the table of 4 MB does not fit."""
    program = tmp_path / "large.py"
    text = """
        import resource, signal
        import numpy as np
        import ropewalk as rw

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            w = rw.Variable(np.zeros(1_000_000, np.float32), name="w")
        strategy.run(lambda: w.assign_add(np.ones(1_000_000, np.float32)))
        rw.optimizers.SGD(0.1).apply_gradients([(np.ones(1_000_000, np.float32), w)])
        """
    program.write_text(textwrap.dedent(text))
    result = run("run", "--model-dir", str(tmp_path / "model"), str(program))
    assert result.returncode == 7, result.stderr
    assert "cannot write to" in result.stderr
    assert "a file would be larger than allowed" in result.stderr
    assert len(result.stderr.splitlines()) <= 25, result.stderr
