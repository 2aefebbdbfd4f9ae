"""A job whose tasks are containers, each with its parent process: what a fault costs whom."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from helpers import processes
from helpers.waiting import scaled
from ropewalk.annexes.kubernetes.container import code_for_launcher, write_termination_message
from ropewalk.core.checkpoint import CheckpointInfo, CheckpointReader, list_checkpoints
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId
from ropewalk.net.sockets import is_listening
from ropewalk.net.this_machine import free_ports

pytestmark = pytest.mark.usefixtures("no_process_left")

CHIEF, PS0, PS1 = TaskId("chief", 0), TaskId("ps", 0), TaskId("ps", 1)
W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
TASKS = (CHIEF, PS0, PS1, W0, W1)
# The step of the job, which every task that trains writes where the test reads it, whole.
HOOK = """\
import os
own = f"{__file__}.{os.getpid()}"
open(own, "w").write(str(strategy.global_step))
os.replace(own, __file__ + ".step")
"""
IDLE_S = 10.0  # on an idle machine three; the processes of six tasks start at once here


class Containers:
    """Starts a container when one has ended with a code that is worth it, as Kubernetes does."""

    def __init__(
        self,
        program: str,
        folder: Path,
        *arguments: str,
        tasks: Sequence[TaskId] = TASKS,
        started: Sequence[TaskId] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._environment = environment
        self.cluster: dict[str, list[str]] = {}
        for task, port in zip(tasks, free_ports(len(tasks)), strict=True):
            self.cluster.setdefault(task.type, []).append(f"127.0.0.1:{port}")
        self._command = [*processes.ROPEWALK, "run", program, *arguments]
        self._folder = folder
        self._step = Path(f"{program}.step")
        self.running: dict[TaskId, subprocess.Popen[Any]] = {}
        self.ends: list[tuple[TaskId, int]] = []
        for task in started or tasks:
            self.start(task)

    def start(self, task: TaskId) -> None:
        where = {"cluster": self.cluster, "task": {"type": task.type, "index": task.index}}
        with self.log(task).open("ab") as log:
            self.running[task] = processes.start(
                self._command,
                env={
                    **os.environ,
                    "TF_CONFIG": json.dumps(where),
                    "ROPEWALK_SUPERVISE": "true",
                    "ROPEWALK_CHIEF_RETURNS": "true",
                    "ROPEWALK_JOB_ID": "digits",
                    "ROPEWALK_MODEL_DIR": str(self._folder / "model"),
                    "ROPEWALK_SAVE_EVERY_S": "0.5",
                    "ROPEWALK_JOIN_TIMEOUT_S": "600",
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self, task: TaskId) -> Path:
        return self._folder / f"{task.type}-{task.index}.txt"

    def look(self) -> None:
        """Start again what has ended, and note it."""
        for task, process in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            self.ends.append((task, code))
            if code == 0:
                del self.running[task]
            else:
                self.start(task)

    @property
    def step(self) -> int:
        try:
            return int(self._step.read_text() or 0)
        except OSError:
            return 0

    def checkpoints(self) -> list[CheckpointInfo]:
        """All that are complete, or count as such."""
        return list_checkpoints(str(self._folder / "model"))

    def until_steps(self, count: int, wait_until: Callable[..., None], timeout_s: float) -> None:
        """Until the job has done so many more steps."""
        began = self.step

        def done() -> bool:
            self.look()
            return self.step > began + count

        wait_until(done, timeout_s, f"steps beyond {began}; ended: {self.ends}")

    def kill(self, task: TaskId) -> None:
        """As if the machine had lost power: the container's process and its task."""
        for pid in sorted(
            self.processes(task)
        ):  # the container's first: it would start its task again
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running[task].wait(scaled(10))

    def close(self) -> None:
        for task in self.running:
            self.kill(task)

    def processes(self, task: TaskId) -> set[int]:
        """A container's process, and the task below it."""
        return {
            pid
            for pid, environment in processes.marked(os.environ[processes.MARK]).items()
            if json.loads(environment["TF_CONFIG"])["task"]
            == {"type": task.type, "index": task.index}
        }


def children(pid: int) -> list[int]:
    """Children of a process, whichever of its threads has started them."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


@pytest.fixture
def start(write_program: Callable[..., str], tmp_path: Path) -> Iterator[Callable[..., Containers]]:
    made: list[Containers] = []

    def run(*arguments: str) -> Containers:
        made.append(Containers(write_program(HOOK), tmp_path, *arguments))
        return made[-1]

    yield run
    for each in made:
        each.close()


@pytest.mark.scenario
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param([CHIEF, PS0, W1], id="each role"),
        pytest.param([CHIEF, PS0, W0, PS1, W1] * 2, id="ten", marks=pytest.mark.soak),
    ],
)
def test_kills_of_every_role_in_turn_cost_the_killed_containers_alone(
    start: Callable[..., Containers], wait_until: Callable[..., None], killed: list[TaskId]
) -> None:
    job = start("1000000", "0.01")
    job.until_steps(20, wait_until, 60)
    for task in killed:
        before = job.step
        job.kill(task)
        job.until_steps(20, wait_until, IDLE_S)
        # Saved twice a second: at most what was done since, not all.
        assert job.step > before / 2
    assert job.ends == [(task, -signal.SIGKILL) for task in killed], "peers have cost nothing"
    for info in job.checkpoints():
        saved = {each.variable for each in CheckpointReader(info.path).manifest.tensors}
        assert saved == {"w", "b"}, f"{info.name} lacks what a ps that was killed had"
    logs = [job.log(task).read_text() for task in (CHIEF, W0, W1)]  # one may be killed before that
    assert any("starts again here" in log for log in logs)


@pytest.mark.scenario
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tasks", [[PS0], [W0, CHIEF]], ids=["a ps", "a worker, then the chief"])
def test_containers_that_are_asked_to_stop_end_with_143_and_the_others_stay(
    start: Callable[..., Containers], wait_until: Callable[..., None], tasks: list[TaskId]
) -> None:
    job = start("1000000", "0.01")
    job.until_steps(20, wait_until, 60)
    for task in tasks:
        evicted = job.running[task]
        evicted.terminate()
        evicted.wait(scaled(20))
        job.until_steps(20, wait_until, IDLE_S)
    assert job.ends == [(task, ExitCode.DRAINED) for task in tasks]
    if PS0 not in tasks:  # without replicas the others go on from the checkpoint
        assert "starts again here" not in job.log(W1).read_text(), "it has trained on"


@pytest.mark.scenario
@pytest.mark.timeout(300)
def test_a_job_of_containers_that_is_done_ends_every_one_with_0(
    start: Callable[..., Containers], wait_until: Callable[..., None]
) -> None:
    job = start("200", "0.005")

    def ended() -> bool:
        job.look()
        return not job.running

    wait_until(ended, 60, "the end")
    assert sorted(job.ends) == sorted((task, 0) for task in TASKS)


@pytest.mark.scenario
@pytest.mark.timeout(300)
def test_a_chief_does_not_train_on_without_a_worker_that_has_failed_for_good(
    write_program: Callable[..., str], tmp_path: Path
) -> None:
    fails = "if me.startswith('worker') and count == 5: raise ValueError('bad record 17')"
    job = Containers(write_program(fails), tmp_path, "1000000", "0.01")
    try:
        assert job.running[CHIEF].wait(scaled(60)) == ExitCode.JOB_FAILED
        assert "failed: ValueError: bad record 17" in job.log(CHIEF).read_text()
        assert "starts again here" not in job.log(CHIEF).read_text()
    finally:
        job.close()


@pytest.mark.scenario
@pytest.mark.timeout(300)
def test_a_chief_does_not_wait_for_a_worker_once_another_one_has_failed_for_good(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import json, os\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'worker':\n"
        "    raise ValueError('no data here')\n"
        "import ropewalk as rw\n"
        "rw.distribute.ParameterServerStrategy()\n"
    )
    waits = {"ROPEWALK_WAIT_FOR_WORKERS": "2"}
    job = Containers(str(program), tmp_path, started=[CHIEF, PS0, PS1, W0], environment=waits)
    try:
        assert job.running[CHIEF].wait(scaled(60)) == ExitCode.JOB_FAILED
        said = job.log(CHIEF).read_text()
        assert "starts again here" not in said, "it would wait for worker 1 for ten minutes"
    finally:
        job.close()


@pytest.mark.annex("ring")
@pytest.mark.scenario
@pytest.mark.timeout(300)
def test_a_worker_in_sync_that_is_killed_costs_its_own_container_alone(
    write_program: Callable[..., str], tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    strategy = {"ParameterServerStrategy": "MultiWorkerMirroredStrategy"}
    program, tasks = write_program(HOOK, replace=strategy), (CHIEF, W0, W1)
    job = Containers(program, tmp_path, "1000000", "0.01", tasks=tasks)
    try:
        job.until_steps(5, wait_until, 60)
        for task in (W1, CHIEF):
            job.kill(task)
            job.until_steps(5, wait_until, 2 * IDLE_S)
        assert job.ends == [(W1, -signal.SIGKILL), (CHIEF, -signal.SIGKILL)]
    finally:
        job.close()


# -- one container ---------------------------------------------------------------------------


def run_alone(folder: Path, text: str, **environment: str) -> tuple[int, str, str]:
    """A container whose program is a whole cluster by itself."""
    program = folder / "program.py"
    program.write_text(text)
    return processes.run(
        [*processes.ROPEWALK, "run", str(program)],
        timeout_s=scaled(60),
        env={**os.environ, "ROPEWALK_SUPERVISE": "true", **environment},
    )


def test_the_exit_code_the_output_and_the_error_of_a_program_are_the_containers(
    tmp_path: Path,
) -> None:
    code, output, errors = run_alone(tmp_path, "print('here'); raise ValueError('wrong')")
    assert (code, output) == (ExitCode.PROGRAM_FAILED, "here\n")
    assert errors.count("ValueError: wrong") == 1, "not by the task and by its parent"
    assert run_alone(tmp_path, "import sys; sys.exit(42)")[0] == 42


def test_a_task_is_told_what_its_container_was_told(tmp_path: Path) -> None:
    told = "ROPEWALK_STATUS_OBJECT"
    code, output, errors = run_alone(
        tmp_path, f"import os; print(os.environ[{told!r}])", **{told: "digits-status"}
    )
    assert (code, output) == (0, "digits-status\n"), errors


@pytest.mark.real_start
def test_a_container_reaps_orphans_and_leaves_nothing_of_a_task_that_has_ended(
    tmp_path: Path,
) -> None:
    orphan = "import os,time; os.setsid(); os.fork() and os._exit(0); time.sleep(%s)"
    text = (
        "import glob, os, subprocess, sys, time\n"
        f"for seconds in (0, 600): subprocess.run([sys.executable, '-c', {orphan!r} % seconds])\n"
        "parent = os.getppid()\n"
        "def states():\n"
        "    files = glob.glob(f'/proc/{parent}/task/*/children')\n"
        "    ids = [pid for file in files for pid in open(file).read().split()]\n"
        "    stats = [open(f'/proc/{pid}/stat').read() for pid in ids]\n"
        "    return [stat.rpartition(')')[2].split()[0] for stat in stats]\n"
        "end = time.monotonic() + 60\n"
        "while len(states()) != 2 or 'Z' in states():\n"
        "    assert time.monotonic() < end, states()\n"
        "    time.sleep(0.05)\n"
        "print('one zombie less')\n"
    )
    code, output, errors = run_alone(tmp_path, text)
    assert (code, output) == (0, "one zombie less\n"), errors
    # The fixture finds the orphan that would sleep for ten minutes.


@pytest.mark.parametrize("code", [0, 3], ids=["done", "failed"])
def test_a_container_that_is_started_again_by_whatever_ends_stays_when_its_part_is_done(
    tmp_path: Path, wait_until: Callable[..., None], code: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys; open({str(tmp_path / 'began')!r}, 'a').write('x'); sys.exit({code})"
    )
    [port] = free_ports(1)
    with (tmp_path / "log").open("wb") as log:
        container = processes.start(
            [*processes.ROPEWALK, "run", str(program)],
            env={
                **os.environ,
                "ROPEWALK_SUPERVISE": "true",
                "ROPEWALK_HOLDS": "true",
                "ROPEWALK_HEALTH_PORT": str(port),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if code:  # a failure is for whoever restarts it
        assert container.wait(scaled(30)) == code
        return
    said = "nothing is left to do here"
    wait_until(lambda: said in (tmp_path / "log").read_text(), 30, "the end of the program")
    wait_until(lambda: is_listening(f"127.0.0.1:{port}", 1), 30, "an answer to probes")
    assert container.poll() is None
    container.terminate()
    assert container.wait(scaled(10)) == 0
    assert (tmp_path / "began").read_text() == "x"


@pytest.mark.real_start
def test_a_task_ends_when_its_parent_is_killed(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'ready')!r}, 'w'); import time; time.sleep(600)")
    parent = processes.start(
        [*processes.ROPEWALK, "run", str(program)],
        env={**os.environ, "ROPEWALK_SUPERVISE": "true"},
    )
    wait_until((tmp_path / "ready").exists, 30, "the program")
    [task] = children(parent.pid)
    parent.kill()
    parent.wait(scaled(10))
    wait_until(lambda: not Path(f"/proc/{task}/cmdline").exists(), 30, "its end")


# A container in which as many processes were killed for want of memory as argument 2 says, at first
# and after each start of a task; its program kills itself until it has begun three times.
KILLED = """\
import itertools, json, sys
from pathlib import Path
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.annexes.kubernetes.container import Container
kills = itertools.chain(json.loads(sys.argv[2]), itertools.repeat(0))
container = Container(
    TaskId("chief", 0), ["run", sys.argv[1]], Settings(), Path(sys.argv[1] + ".error"),
    lambda: next(kills),
)
sys.exit(container.run())
"""
KILLS_ITSELF = """\
import os, signal
with open(__file__ + ".began", "a") as file:
    file.write("x")
if os.path.getsize(file.name) < 3:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("kills", "code", "starts"),
    [
        pytest.param([0, 0, 0, 0], 0, 3, id="from outside"),
        pytest.param([4, 5], ExitCode.KILLED, 1, id="for want of memory"),
        pytest.param([4, 4, 4, 5], ExitCode.KILLED, 2, id="the second time"),
        pytest.param([None, None], ExitCode.KILLED, 1, id="the system does not say"),
    ],
)
def test_a_task_that_is_killed_is_started_again_unless_it_had_too_much_memory(
    tmp_path: Path, kills: list[int | None], code: int, starts: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLS_ITSELF)
    command = [sys.executable, "-c", KILLED, str(program), json.dumps(kills)]
    ended, _, errors = processes.run(command, timeout_s=scaled(60), env=os.environ)
    assert ended == code, errors
    assert Path(f"{program}.began").read_text() == "x" * starts


@pytest.mark.parametrize(
    ("role", "code", "asked", "in_job", "seen"),
    [
        pytest.param("ps", 0, True, True, ExitCode.DRAINED, id="a ps of a JobSet hands over"),
        pytest.param("ps", 0, True, False, 0, id="a ps of a StatefulSet hands over"),
        pytest.param("ps", 0, False, True, 0, id="the job is over"),
        pytest.param("ps", 144, True, False, ExitCode.DRAINED, id="a ps that left early"),
        pytest.param("ps", 144, False, False, 144, id="a ps that lost its chief"),
        pytest.param("ps", 8, True, True, 8, id="a ps that is refused"),
        pytest.param("worker", 0, True, True, 0, id="a worker whose work was complete"),
    ],
)
def test_a_ps_that_hands_over_in_a_job_of_kubernetes_is_wanted_again(
    role: str, code: int, asked: bool, in_job: bool, seen: int
) -> None:
    task = TaskId(role, 0)
    assert code_for_launcher(task, code, asked_to_stop=asked, in_job=in_job) == seen


@pytest.mark.parametrize(
    ("code", "report", "said"),
    [
        pytest.param(0, "", "", id="done"),
        pytest.param(
            1, "Traceback\n  x\nValueError: no\n", "PROGRAM_FAILED (1): ValueError: no", id="raised"
        ),
        pytest.param(8, "no certificate", "ACCESS (8): no certificate", id="refused"),
        pytest.param(137, "", "KILLED (137): killed by SIGKILL", id="killed"),
        pytest.param(2, "", "", id="what the log says better"),
        pytest.param(42, "why", "exit (42): why", id="a code of the program"),
    ],
)
def test_the_status_of_a_pod_gets_a_name_and_a_sentence(
    tmp_path: Path, code: int, report: str, said: str
) -> None:
    file = tmp_path / "termination-log"
    write_termination_message(file, code, report)
    assert not file.exists(), "outside of Kubernetes nothing is made"
    file.touch()
    write_termination_message(file, code, report)
    assert file.read_text().startswith(said)
    assert bool(file.read_text()) == bool(said)


@pytest.mark.scenario
@pytest.mark.timeout(300)
def test_the_port_for_probes_stays_open_while_a_task_is_started_again_in_its_container(
    write_program: Callable[..., str], tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """A liveness probe asks for a connection; a refused one would have the kubelet kill the pod."""
    [port] = free_ports(1)
    ports = {"ROPEWALK_HEALTH_PORT": str(port)}
    job = Containers(write_program(HOOK), tmp_path, started=[PS0], environment=ports)
    try:
        wait_until(lambda: "ready at port" in job.log(PS0).read_text(), 60, "the ps")
        assert is_listening(f"127.0.0.1:{port}", scaled(1))
        for pid in job.processes(PS0) - {job.running[PS0].pid}:
            os.kill(pid, signal.SIGKILL)

        def serves_again() -> bool:
            assert is_listening(f"127.0.0.1:{port}", scaled(1)), "a probe was refused"
            return job.log(PS0).read_text().count("ready at port") == 2

        wait_until(serves_again, 60, "the next task")
        assert probes_as_serving(port)
    finally:
        job.close()


def probes_as_serving(port: int) -> bool:
    """Whether the task at a port for probes says that it serves."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        return bool(stub.Check(request, timeout=scaled(5)).status == 1)
