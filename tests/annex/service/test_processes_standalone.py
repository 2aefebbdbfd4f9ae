"""A standalone cluster of real processes, and drivers that come and go."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

import ropewalk as rw
from helpers import processes
from helpers.pages import ROOT, cells
from helpers.waiting import scaled, wait_until
from ropewalk.net.this_machine import free_ports

StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]

TRAIN = """\
import sys
import numpy as np
import ropewalk as rw
from model import SIZE

print("began with", sys.argv[1:], open("data.txt").read().strip())
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(SIZE, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)

def step():
    optimizer.apply_gradients([(w.read_value() - 1, w)])

while strategy.global_step < 100:
    strategy.run(step)
# A stale step may move it by 0.1.
print("ends as", w.shape, bool(np.abs(w.read_value() - 1).max() < 0.5))
"""

ENDLESS = """\
import threading
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(4, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
count = 0
while True:
    strategy.run(lambda: optimizer.apply_gradients([(np.ones(4, np.float32), w)]))
    threading.Event().wait(0.01)
    count += 1
    if count == 5:
        print("five steps", flush=True)
"""


NESTED = """\
import os

for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
print("made them")
"""


@dataclass(frozen=True)
class Cluster:
    """A standing cluster: where it is, and its folders for what is temporary and for models."""

    address: str
    temporary: Path
    models: Path


@contextmanager
def standing_cluster(folder: Path, ps: int = 1) -> Iterator[Cluster]:
    """Start a cluster, and see that it leaves nothing at its end."""
    temporary, models, mark = folder / "tmp", folder / "models", uuid4().hex
    temporary.mkdir()
    [port] = free_ports(1)
    environment = {n: v for n, v in os.environ.items() if not n.startswith("ROPEWALK_")}
    with (folder / "output.txt").open("w+b") as output:
        process = processes.start(
            [
                *processes.ROPEWALK, "local", "--standalone", "--ps", str(ps), "--workers", "2",
                "--port", str(port), "--model-dir", str(models), "--heartbeat-s", "0.1",
                "--lease-s", "2", "--leave-grace-s", "1",
            ],
            cwd=folder,
            env={**environment, "TMPDIR": str(temporary), processes.MARK: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    said = Path(output.name).read_text
    cluster = Cluster(f"127.0.0.1:{port}", temporary, models)
    everybody = Standing(cluster, folder, set())
    try:
        wait_until(lambda: "the cluster is at" in said(), 30, "the cluster")
        wait_until(lambda: everybody.run("jobs")[1].count("there") == 3 + ps, 30, "its nodes")
        yield cluster
        process.send_signal(signal.SIGTERM)
        process.wait(scaled(20))
        wait_until(lambda: not processes.marked(mark), 20, "the end of all its processes")
    finally:
        for pid in processes.marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    of_daemons = ("ropewalk-node", "ropewalk-gateway")
    left = [path.name for path in temporary.iterdir() if path.name.startswith(of_daemons)]
    assert left == [], said()


class Standing:
    """A standing cluster, and commands to it from a project folder.

    Args:
        cluster: The cluster, which may be that of other tests, too.
        project: The folder.
        before: Jobs of other tests.
    """

    def __init__(self, cluster: Cluster, project: Path, before: Set[str]) -> None:
        self.cluster = cluster
        self.address = cluster.address
        self.project = project
        self._before = before

    def command(self, *words: str) -> list[str]:
        """With the cluster's address, before the words that are the script's."""
        end = words.index("--") if "--" in words else len(words)
        return [*processes.ROPEWALK, *words[:end], "--cluster", self.address, *words[end:]]

    def run(self, *words: str, timeout_s: float = 60) -> tuple[int, str, str]:
        """A command to its end: its code, output and errors."""
        return processes.run(
            self.command(*words), timeout_s=scaled(timeout_s), cwd=self.project, env=os.environ
        )

    def submit_endless(self) -> str:
        """A job of one worker that ends when it is stopped; its id."""
        (self.project / "endless.py").write_text(ENDLESS)
        code, job, errors = self.run("submit", "endless.py", "--detach", "--workers", "1")
        assert code == 0, errors
        return job.strip()

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """A command in the background."""
        return processes.start(
            self.command(*words),
            cwd=self.project,
            env=os.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def python(self, *words: str) -> tuple[int, str, str]:
        """A program here, to its end."""
        return processes.run(
            [sys.executable, *words],
            timeout_s=scaled(60),
            cwd=self.project,
            env={**os.environ, "ROPEWALK_CLUSTER": self.address},
        )

    def jobs(self) -> dict[str, dict[str, object]]:
        """The jobs of this test, by id."""
        code, output, errors = self.run("jobs", "--json")
        assert code == 0, errors
        jobs = {job["id"]: job for job in map(json.loads, output.splitlines())}
        return {name: job for name, job in jobs.items() if name not in self._before}

    def end(self) -> None:
        """End what still runs."""
        for name, job in self.jobs().items():
            if job["state"] != "ended":
                self.run("stop", name, "--kill")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of all tests that need no other one."""
    with standing_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def standing(cluster: Cluster, tmp_path: Path) -> Iterator[Standing]:
    project = tmp_path / "project"
    project.mkdir()
    made = Standing(cluster, project, set(Standing(cluster, project, set()).jobs()))
    yield made
    made.end()


@pytest.fixture
def with_two_ps(tmp_path: Path) -> Iterator[Standing]:
    with standing_cluster(tmp_path, ps=2) as cluster:
        yield Standing(cluster, tmp_path, set())


def test_a_program_is_sent_run_changed_and_run_again(standing: Standing) -> None:
    project = standing.project
    (project / "train.py").write_text(TRAIN)
    (project / "model.py").write_text("SIZE = 4\n")
    (project / "data.txt").write_text("some data\n")
    (project / ".gitignore").write_text("big.bin\n")
    (project / "big.bin").write_bytes(b"\0" * 1_000_000)
    code, output, errors = standing.run("submit", "train.py", "--", "--epochs", "3")
    assert code == 0, output + errors
    for task in ("chief:0", "worker:0", "worker:1"):
        assert f"{task} | began with ['--epochs', '3'] some data" in output
        assert f"{task} | ends as (4,) True" in output, output
    sent = re.search(r"4 files, (\d+) KiB", errors)
    assert sent is not None
    assert int(sent[1]) < 100, "what .gitignore names is not sent"

    (project / "model.py").write_text("SIZE = 7\n")
    code, output, errors = standing.run("submit", "train.py")
    assert code == 0, output + errors
    assert "chief:0 | ends as (7,) True" in output, "a new model, on the same servers"
    *_, second = standing.jobs()
    code, output, errors = standing.run("submit", "train.py", "--model", second)
    assert code == 0, output + errors
    assert "resuming from" in output, "the last checkpoint of the job before"

    (project / "train.py").write_text("import sys\nprint('why', file=sys.stderr)\nsys.exit(3)\n")
    code, output, errors = standing.run("submit", "train.py", "--workers", "0")
    assert code == 3
    assert "chief:0 | why" in output
    jobs = standing.jobs()
    assert [job["exit_code"] for job in jobs.values()] == [0, 0, 0, 3]
    saved = {path.name for path in standing.cluster.models.iterdir()}
    assert saved & set(jobs) == set(jobs) - {list(jobs)[2]}, "each in a folder of its own"


@pytest.mark.annex("estimator")
def test_an_estimator_trains_from_here_and_keeps_its_checkpoints_here(standing: Standing) -> None:
    example = str(ROOT / "examples" / "estimator_digits.py")
    options = ["--remote_cluster", standing.address, "--model_dir", "model"]
    code, output, errors = standing.python(example, *options, "--max_steps", "100")
    assert code == 0, output + errors
    code, output, errors = standing.python(example, *options, "--max_steps", "150")
    assert code == 0, output + errors
    model_dir = str(standing.project / "model")
    assert [job["exit_code"] for job in standing.jobs().values()] == [0, 0]
    last = rw.training.read_evaluations(model_dir)[-1]
    assert last.global_step == 150
    assert last.metrics["accuracy"] > 0.8


def test_a_detached_job_is_found_again_followed_and_stopped(standing: Standing) -> None:
    job = standing.submit_endless()
    wait_until(lambda: "five steps" in standing.run("logs", job)[1], 30, "steps")
    follower = standing.start("logs", job, "-f")
    assert standing.run("logs", job, "--task", "ps:0")[1].startswith("ps:0 | ")
    other = standing.run("submit", "endless.py", "--detach", "--workers", "1", "--name", "other")
    assert other[0] == 0, other
    assert {name: found["state"] for name, found in standing.jobs().items()} == {
        job: "running",
        other[1].strip(): "running",
    }
    code, output, errors = standing.run("stop", job, "--reason", "enough of it")
    assert code == 0, errors
    code, output, errors = standing.run("attach", job)
    assert code == 143, output + errors
    assert "enough of it" in output
    assert follower.wait(scaled(20)) == 0, "following logs decides nothing"
    assert standing.jobs()[other[1].strip()]["state"] == "running", "the other one goes on"
    code, output, errors = standing.run("stop", "other", "--kill")
    assert code == 0, errors
    wait_until(lambda: all(j["state"] == "ended" for j in standing.jobs().values()), 20, "the end")


def test_a_job_ends_with_its_driver_and_a_killed_worker_comes_back(standing: Standing) -> None:
    (standing.project / "endless.py").write_text(ENDLESS)
    driver = standing.start("submit", "endless.py", "--grace-s", "3")
    wait_until(standing.jobs, 30, "the job")
    [job] = standing.jobs()
    wait_until(lambda: standing.run("logs", job)[1].count("five steps") == 3, 30, "steps")
    before = standing.run("logs", job, "--task", "worker:1")[1].count("five steps")
    workers = standing.run("logs", job)[1]
    assert "ready at port" in workers
    os.kill(_pid_of(standing, job, "worker:1"), signal.SIGKILL)
    wait_until(
        lambda: standing.run("logs", job, "--task", "worker:1")[1].count("five steps") > before,
        30,
        "the worker again",
    )
    driver.kill()
    driver.wait(10)
    wait_until(lambda: standing.jobs()[job]["state"] == "ended", 40, "the end of the job")
    assert "driver was silent" in str(standing.jobs()[job]["reason"])
    assert standing.jobs()[job]["exit_code"] == 143


@pytest.mark.annex("replication")
def test_a_job_gets_a_ps_more_and_one_less_while_it_trains(with_two_ps: Standing) -> None:
    standing = with_two_ps
    (standing.project / "endless.py").write_text(ENDLESS)
    words = ["--ps", "1", "--workers", "1", "--set", "ps_shares=2", "--detach"]
    code, job, errors = standing.run("submit", "endless.py", *words)
    assert code == 0, errors
    job = job.strip()
    wait_until(lambda: "five steps" in standing.run("logs", job)[1], 30, "it trains")
    for ps in (2, 1):
        code, output, errors = standing.run("scale", job, "--ps", str(ps))
        assert code == 0, output + errors
        assert output.endswith(f"the job has {ps} ps\n")
        status = json.loads(standing.run("status", job, "--json")[1])
        assert len({share["leader"]["index"] for share in status["shares"]}) == ps, status["shares"]
    assert standing.jobs()[job]["state"] == "running"
    code, output, errors = standing.run("scale", job, "--ps", "3")
    assert code == 6
    assert "1 to 2 ps, not 3" in errors
    assert standing.run("stop", job)[0] == 0


def test_a_job_whose_program_leaves_nested_folders_ends_as_any_other(standing: Standing) -> None:
    (standing.project / "nested.py").write_text(NESTED)
    code, output, errors = standing.run("submit", "nested.py", "--workers", "0")
    assert code == 0, output + errors
    assert "chief:0 | made them" in output
    left = standing.cluster.temporary.glob
    wait_until(lambda: not list(left("ropewalk-node-*/nested*")), 30, "the folders to go")


def test_jobs_run_after_a_cleaner_has_removed_the_daemons_folders(standing: Standing) -> None:
    (standing.project / "short.py").write_text("print('it ran')\n")
    assert standing.run("submit", "short.py")[0] == 0
    folders = standing.cluster.temporary.glob
    wait_until(lambda: len([*folders("ropewalk-*")]) == 5, 20, "a gateway and four nodes")
    for folder in [*folders("ropewalk-*")]:
        shutil.rmtree(folder)
    code, output, errors = standing.run("submit", "short.py")
    assert code == 0, output + errors
    assert output.count("it ran") == 3


def test_a_job_is_named_without_its_cluster_and_says_how_it_ended(standing: Standing) -> None:
    job = standing.submit_endless()

    def run(*words: str) -> tuple[int, str, str]:
        return processes.run(
            [*processes.ROPEWALK, *words],
            timeout_s=scaled(60),
            cwd=standing.project,
            env={**os.environ, "ROPEWALK_CLUSTER": standing.address},
        )

    wait_until(lambda: "chief:0" in run("status", job)[1], 30, "its chief")
    assert run("stop", job, "--reason", "enough of it")[1] == f"{job} is stopping: enough of it\n"
    assert run("attach", job)[0] == 143
    code, output, errors = run("stop", job, "--reason", "once more")
    assert code == 0, errors
    ended = rf"{job} ended at \d\d:\d\d:\d\d with 143: enough of it"
    assert re.fullmatch(ended + "\n", output), output
    code, output, errors = run("status", job)
    assert code == 2
    assert re.search(ended + ": it has no chief to ask", errors), errors


def test_a_job_whose_chief_hangs_ends(standing: Standing) -> None:
    job = standing.submit_endless()
    wait_until(lambda: standing.run("logs", job)[1].count("five steps") == 2, 30, "steps")
    os.kill(_pid_of(standing, job, "chief:0"), signal.SIGSTOP)
    assert standing.run("attach", job)[0] == 137
    assert standing.jobs()[job]["state"] == "ended"
    assert standing.jobs()[job]["exit_code"] == 137
    assert "it has been stopped (SIGSTOP) for" in standing.run("logs", job)[1]


def test_a_second_process_of_a_node_is_refused_and_the_first_one_works_on(
    standing: Standing, start_cli: StartCli
) -> None:
    cluster = {"chief": [standing.address], "worker": [f"127.0.0.1:{n}" for n in free_ports(2)]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    second, output = start_cli("worker", "--standalone", TF_CONFIG=config)
    assert second.wait(scaled(30)) == 6, output.read_text()
    assert "there are two processes for the node worker:1" in output.read_text()
    (standing.project / "short.py").write_text("print('it ran')\n")
    code, lines, errors = standing.run("submit", "short.py", "--workers", "2")
    assert code == 0, lines + errors
    assert "worker:1 | it ran" in lines


def _pid_of(standing: Standing, job: str, task: str) -> int:
    """Of a task's process, as the job's status has it."""
    code, output, errors = standing.run("status", job, "--json")
    assert code == 0, errors
    role, _, index = task.partition(":")
    tasks = json.loads(output)["tasks"]
    pids = {(each["task"]["type"], each["task"]["index"]): each["pid"] for each in tasks}
    return int(pids[role, int(index)])


def test_the_program_and_the_notebook_of_the_docs_drive_the_cluster_through_its_one_address(
    standing: Standing,
) -> None:
    page = (ROOT / "docs/standalone.md").read_text()
    [program] = re.findall(r"^```py\n(.*?)^```", page, flags=re.M | re.S)
    notebook = ROOT / "examples/standalone/notebook.ipynb"
    (standing.project / "driven.py").write_text(program)
    (standing.project / "cells.py").write_text("\n\n".join(cells(notebook)))
    code, output, errors = standing.python("driven.py", standing.address)
    assert code == 0, output + errors
    assert "weights [1. 2. 3.]" in output
    code, output, errors = standing.python("cells.py")
    assert code == 0, output + errors
    accuracy = re.search(r"accuracy (0\.\d+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    assert [job["exit_code"] for job in standing.jobs().values()] == [0, 0]


def test_the_search_of_the_docs_runs_a_job_for_each_trial(standing: Standing) -> None:
    pytest.importorskip("optuna")
    shutil.copytree(ROOT / "examples" / "hpo", standing.project, dirs_exist_ok=True)
    code, output, errors = standing.python("search.py", "--trials", "3", "--at-once", "2")
    assert code == 0, output + errors
    assert re.search(r"best: \S+ with {'rate': .*'momentum': .*}, of 3 trials", output), output
    names = sorted(name.rpartition("-")[0] for name in standing.jobs())
    assert names == ["trial-0", "trial-1", "trial-2"]


CONNECTED = """\
import numpy as np
import ropewalk as rw

for model in ("", "mine", "mine"):
    with rw.connect("127.0.0.1:{port}", model=model) as at:
        strategy = rw.distribute.ParameterServerStrategy(at.resolver)
        with strategy.scope():
            w = rw.Variable(np.zeros(2, np.float32), name="w")
        strategy.run(lambda: w.assign_add(np.ones(2, np.float32)))
        print(at.job, w.numpy(), strategy.global_step)
"""


def test_a_cluster_with_a_name_of_its_own_takes_a_program_that_connects_and_resumes(
    start_cli: StartCli, tmp_path: Path
) -> None:
    # As the pods of a standing cluster on Kubernetes, which are told the name of theirs.
    [port] = free_ports(1)
    _, output = start_cli(
        "local", "--standalone", "--ps", "1", "--workers", "1", "--port", str(port),
        "--model-dir", str(tmp_path / "models"),
        ROPEWALK_JOB_ID="desk",
    )  # fmt: skip
    wait_until(lambda: "the cluster is at" in output.read_text(), 30, "the cluster")
    (tmp_path / "program.py").write_text(CONNECTED.replace("{port}", str(port)))
    code, jobs, errors = processes.run(
        [sys.executable, str(tmp_path / "program.py")], timeout_s=scaled(60), env=os.environ
    )
    assert code == 0, errors + output.read_text()
    found = [line.partition(" ") for line in jobs.splitlines()]
    assert all(job.startswith("program-") for job, _, _ in found)
    assert [values for _, _, values in found] == ["[1. 1.] 1", "[1. 1.] 1", "[2. 2.] 2"]
