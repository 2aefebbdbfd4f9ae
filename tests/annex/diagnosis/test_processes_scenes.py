"""Faults that are planted in a job that runs: what a person looks at first names the true cause.

docs/diagnosis.md has the table.
"""

import json
import os
import re
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from helpers import processes
from helpers.clusters import HandStarted, tf_configs
from helpers.links import Links
from helpers.local_run import LivePids, LocalRun
from helpers.small_disk import SmallDisk
from helpers.tls_files import LOCAL, issued, write
from helpers.waiting import scaled, wait_until
from ropewalk.client.chief.calls import ChiefClient, JobStatus
from ropewalk.cluster.access import Principal
from ropewalk.core.report import Finding
from ropewalk.core.settings import Settings

pytestmark = [pytest.mark.scenario, pytest.mark.annex("insight"), pytest.mark.timeout(400)]

# What is planted is there while a file of its name is.
TRAIN = """
import os, re, threading, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy(placement=rw.distribute.placement.round_robin)
with strategy.scope():
    small = rw.Variable(np.zeros(8, np.float32), name="small")
    large = rw.Variable(np.zeros(32_000, np.float32), name="large")
    optimizer = rw.optimizers.SGD(0.01)
me = os.environ["ME"]

def is_planted(what, task):
    return me == task and os.path.exists(what)

def batches():
    while True:
        if is_planted("data", "worker:0"):
            time.sleep(0.2)
        yield np.ones(8, np.float32)

def step(gradient):
    time.sleep(0.2 if is_planted("compute", "worker:1") else 0.02)
    gradients = [(gradient, small)]
    if os.path.exists("hot"):
        gradients.append((np.ones(32_000, np.float32), large))
    optimizer.apply_gradients(gradients)

def deadlock():
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def replica():
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=replica, name="replica-1", daemon=True).start()
    with first:
        both.wait()
        with second:
            pass

def spin():
    re.match("(a+)+$", "a" * 60 + "b")

print("trains", flush=True)
for batch in rw.data.Dataset.from_generator(batches):
    strategy.run(step, args=(batch,))
    if is_planted("deadlock", "worker:1"):
        deadlock()
    if is_planted("loop", "worker:2"):
        spin()
"""
OUTER = "127.0.0.2"  # of the proxies, by which tasks know each other


class Night:
    """A job of a chief, three workers and two ps with certificates and proxies between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        configs = tf_configs(chief=1, worker=3, ps=2)
        self.addresses = {
            f"{role}:{index}": address
            for role, all_ in json.loads(configs["chief:0"])["cluster"].items()
            for index, address in enumerate(all_)
        }
        self.files = write(folder / "driver", issued("driver", None))
        self._variables = {
            task: {"TF_CONFIG": config.replace("127.0.0.1", OUTER), "ME": task}
            for task, config in configs.items()
        }
        wrong = self._certificate("worker:2", "evaluator")
        right = {task: self._certificate(task, task.partition(":")[0]) for task in configs}
        begun = {task: {**self._variables[task], **right[task]} for task in configs}
        self._right = begun["worker:2"]
        self.job = HandStarted(
            ["ropewalk", "run", "train.py"],
            {**begun, "worker:2": {**self._right, **wrong}},
            folder,
            ROPEWALK_HOST="127.0.0.1",
            ROPEWALK_SHARED_MEMORY="false",
            ROPEWALK_MODEL_DIR="model",
            ROPEWALK_SAVE_EVERY_S="600",
            OMP_NUM_THREADS="1",
        )
        ways = {task: (self._place(OUTER, at), self._place("", at)) for task, at in self._own()}
        self.links = Links(ways, lambda: {t: p.pid for t, p in self.job.running.items()})

    def _own(self) -> list[tuple[str, str]]:
        return list(self.addresses.items())

    @staticmethod
    def _place(host: str, address: str) -> tuple[str, int]:
        own, _, port = address.rpartition(":")
        return host or own, int(port)

    def _certificate(self, task: str, role: str) -> dict[str, str]:
        index = int(task.partition(":")[2])
        folder = self.folder / f"{task.replace(':', '-')}-{role}"
        files = write(folder, issued(role, index, hosts=(*LOCAL, OUTER)))
        return {f"ROPEWALK_{name.upper()}": str(value) for name, value in files.items()}

    def start_again_with_the_right_certificate(self) -> None:
        self.job.begin("worker:2", self._right)

    @contextmanager
    def planted(self, *what: str) -> Iterator[None]:
        for name in what:
            (self.folder / name).touch()
        yield
        for name in what:
            (self.folder / name).unlink()

    # -- what a person looks at --------------------------------------------------------------

    def status(self) -> JobStatus:
        settings, who = Settings(**self.files), Principal("driver")
        with closing(ChiefClient(self.addresses["chief:0"], settings, who)) as chief:
            return chief.status(timeout_s=scaled(5))

    def finding(self, kind: str, subject: str, word: str = "") -> Finding:
        """Wait until the first screen says it."""
        found = list[Finding]()

        def look() -> bool:
            found[:] = [
                each for each in self.status().findings
                if (each.kind, each.subject) == (kind, subject) and word in each.text
            ]  # fmt: skip
            return bool(found)

        wait_until(look, 60, f"{kind} of {subject}")
        return found[0]

    def command(self, name: str, *words: str) -> str:
        """What a command says, one line for each step or task."""
        own = {f"ROPEWALK_{key.upper()}": str(value) for key, value in self.files.items()}
        command = [*processes.ROPEWALK, name, self.addresses["chief:0"], *words]
        _, said, errors = processes.run(
            command,
            timeout_s=scaled(90),
            cwd=self.folder,
            env={**os.environ, **own, "COLUMNS": "1000"},
        )
        return said + errors

    def doctor(self) -> dict[str, tuple[str, str]]:
        """Name, and (verdict, text) of each step; the first that fails is the cause."""
        said = self.command("doctor", "--timeout-s", "8")
        rows = (line.split(maxsplit=2) for line in said.splitlines() if line.strip())
        return {row[0]: (row[1], row[2].strip() if len(row) > 2 else "") for row in rows}

    def cause(self) -> str:
        """What doctor ends at: the name and the text of the first step that fails."""
        steps = self.doctor()
        fails = [name for name, (mark, _) in steps.items() if mark == "FAILS"]
        assert fails, steps
        return f"{fails[0]}: {steps[fails[0]][1]}"

    def stacks(self) -> dict[str, str]:
        """What holds each task up."""
        said = self.command("stacks", "--json", "--timeout-s", "8")
        lines = [line for line in said.splitlines() if line.startswith("{")]
        return {each["task"]: each["finding"] for each in map(json.loads, lines)}

    def close(self) -> None:
        for process in self.job.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(scaled(10))
        self.links.close()


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    with closing(Night(tmp_path)) as job:
        yield job


@pytest.mark.soak
def test_each_trouble_of_a_job_that_runs_is_named_for_what_it_is(night: Night) -> None:
    for trouble in (_a_wrong_certificate, _all_is_well, _slow_data, _slow_computing,
                    _a_slow_network, _a_hot_shard, _a_deadlock_and_a_loop_inside_c):  # fmt: skip
        trouble(night)


def _a_wrong_certificate(night: Night) -> None:
    wait_until(lambda: night.job.running["worker:2"].poll() is not None, 60, "worker:2")
    assert night.job.running["worker:2"].returncode == 8
    assert "came with the credentials of evaluator:2" in night.job.said("worker:2")
    wait_until(lambda: "trains" in night.job.said("worker:1"), 60, "the others")
    cause = night.cause()
    assert cause.startswith("job: worker:2 is missing for ")
    assert "callers were refused: " in cause
    assert "came with the credentials of evaluator:2" in cause
    night.start_again_with_the_right_certificate()
    wait_until(lambda: "trains" in night.job.said("worker:2"), 60, "worker:2")


def _all_is_well(night: Night) -> None:
    steps = night.doctor()
    assert list(steps) == [
        "address", "DNS", "port", "encryption", "certificate", "identity", "protocol", "task",
        "job", "tasks", "versions", "clocks", "network", "limits", "disk", "checkpoint",
    ]  # fmt: skip
    assert {name: step for name, step in steps.items() if step[0] != "ok"} == {}
    assert steps["tasks"][1] == "chief:0, ps:0, ps:1, worker:0, worker:1, worker:2 answer"
    assert re.search(r"there and back, .*/s and more", steps["network"][1])
    assert night.stacks().keys() == night.addresses.keys()


def _slow_data(night: Night) -> None:
    with night.planted("data"):
        text = night.finding("straggler", "worker:0", "in data (").text
    assert "× the median step" in text


def _slow_computing(night: Night) -> None:
    with night.planted("compute"):
        night.finding("straggler", "worker:1", "in compute (")


def _a_slow_network(night: Night) -> None:
    night.links.delay("worker:2", "ps:0", 0.2)
    night.finding("straggler", "worker:2", "in push (")
    cause = night.cause()
    night.links.heal()
    assert re.match(r"network: worker:2 to ps:0: 2\d\d ms there and back, usual here \d", cause)


def _a_hot_shard(night: Night) -> None:
    with night.planted("hot"):
        text = night.finding("hot_shard", "ps:1").text
    assert "large" in text


def _a_deadlock_and_a_loop_inside_c(night: Night) -> None:
    with night.planted("deadlock", "loop"):
        night.finding("standing", "worker:1", "`ropewalk stacks` says where it stands")
        night.finding("standing", "worker:2")
    cause = night.cause()
    assert "worker:1 has finished no step for" in cause
    assert "worker:2 has finished no step for" in cause
    found = night.stacks()
    assert "threads stand at different locks" in found["worker:1"]
    assert "MainThread wants second (train.py:" in found["worker:1"]
    assert "replica-1 wants first (train.py:" in found["worker:1"]
    assert "hold the interpreter, in C code that is called at train.py:" in found["worker:2"]
    assert "(spin)" in found["worker:2"]


# -- jobs that fail, of a launcher -------------------------------------------------------------

FEW = """
import time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(200_000, np.float32), name="w")
print("trains")
while True:
    strategy.run(lambda: w.assign_add(np.ones(200_000, np.float32)))
    time.sleep(0.05)
"""
Run = Callable[..., LocalRun]


@pytest.fixture
def run(tmp_path: Path, live_pids: LivePids) -> Iterator[Run]:
    """``run(*flags)``: a local job of a chief, a worker and a ps."""
    begun = list[LocalRun]()

    def run(*flags: str | Path) -> LocalRun:
        (tmp_path / "train.py").write_text(FEW)
        roles = ["--workers", "1", "--ps", "1", *map(str, flags), "train.py"]
        begun.append(LocalRun(tmp_path, live_pids, roles))
        begun[-1].until_said("trains", 2)
        return begun[-1]

    yield run
    for job in begun:
        job.stop()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with closing(SmallDisk(8)) as small:
        yield small


@pytest.mark.soak
@pytest.mark.needs("a file system of its own")
def test_a_full_disk_is_a_line_of_the_job_with_the_reason_and_a_step_of_doctor(
    run: Run, disk: SmallDisk
) -> None:
    job = run("--model-dir", disk.folder, "--save-every-s", "1")
    job.until_said("saved ")
    disk.fill()
    job.until_said("no checkpoint could be saved since that of step ")
    assert re.search(r"in a row: .* cannot write to .*: no space left", job.said)
    command = [*processes.ROPEWALK, "doctor", job.address, "--timeout-s", "8"]
    _, said, errors = processes.run(command, timeout_s=scaled(60), cwd=job.folder)
    fails = [line.split()[0] for line in said.splitlines() if " FAILS " in line]
    assert fails == ["disk", "checkpoint"], said + errors


def test_a_killed_ps_is_what_the_job_leaves_and_what_its_report_begins_with(run: Run) -> None:
    job = run()
    job.send("ps:0", signal.SIGKILL)
    job.launcher.wait(scaled(120))
    assert "ps:0 failed first: exit code 137, killed by SIGKILL" in job.said
    assert re.search(r"memory (ran out|has not run out)", job.said)
    assert "what happened: ropewalk report model" in job.said
    command = [*processes.ROPEWALK, "report", "model", "-o", "r.zip"]
    code, said, errors = processes.run(command, timeout_s=scaled(60), cwd=job.folder)
    assert code == 0, errors
    assert said.splitlines()[0].startswith("the job is failed: ps:0 failed: killed by SIGKILL")
    assert "not in it" not in said
    with zipfile.ZipFile(job.folder / "r.zip") as pack:
        names = [name for name in pack.namelist() if name.startswith("left/")]
        lines = [json.loads(line) for name in names for line in pack.read(name).splitlines()]
    of_ps = [each for each in lines if "ps/task:0" in str((each.get("peer"), each.get("error")))]
    assert {each["event"] for each in of_ps} & {"ps.broken", "checkpoint.failed"}, said
