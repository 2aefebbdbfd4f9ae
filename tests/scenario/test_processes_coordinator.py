"""A coordinator's program and workers without one, as real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.clusters import HandStarted, tf_configs
from helpers.pages import ROOT, examples
from helpers.waiting import scaled
from ropewalk.core.exit_codes import ExitCode
from ropewalk.net.this_machine import free_ports

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]
WaitUntil = Callable[..., None]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]

BEGINNING = """
import os, sys, threading, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy(
    variable_partitioner=rw.distribute.partitioners.FixedShardsPartitioner(2)
)
with strategy.scope():
    table = rw.Variable(np.zeros((4, 2), np.float32), name="table")
    count = rw.Variable(np.zeros(4, np.int64), name="count")
optimizer = rw.optimizers.SGD(1.0)
coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)
here = rw.distribute.coordinator.experimental_get_current_worker_index


def pids():
    \"\"\"Of the workers, by index.\"\"\"
    found = {}
    while len(found) < 2:
        asked = [coordinator.schedule(lambda: (here(), os.getpid())) for _ in range(8)]
        found.update(coordinator.fetch(asked))
    return found


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
"""

BEHAVIOUR = """
# What a closure uses is what the coordinator made, sharded variables and their shards too.
def add(row, by):
    table.scatter_add(rw.IndexedSlices(np.full((1, 2), by, np.float32), np.array([row])))
    return table.variables[1].read_value().shape, here()

shapes = coordinator.fetch([coordinator.schedule(add, (row % 4, 1.0)) for row in range(40)])
assert {shape for shape, _ in shapes} == {(2, 2)}
assert table.numpy().tolist() == [[10, 10]] * 4

# A rate that is assigned later counts for the closures that are scheduled then.
def learn():
    strategy.run(lambda: optimizer.apply_gradients([(np.ones((4, 2), np.float32), table)]))

coordinator.schedule(learn)
coordinator.join()
assert table.numpy()[0, 0] == 9
optimizer.learning_rate = 0.5
coordinator.schedule(learn)
coordinator.join()
assert table.numpy()[0, 0] == 8.5
optimizer.learning_rate = lambda: 0.25
coordinator.schedule(learn)
coordinator.join()
assert table.numpy()[0, 0] == 8.25
assert strategy.global_step == 3

# Per-worker values and datasets are the worker's own, and an iterator goes on.
numbers = coordinator.create_per_worker_values(lambda: here() * 100)
dataset = coordinator.create_per_worker_dataset(lambda: range(3))
iterator = iter(dataset)
seen = coordinator.fetch([
    coordinator.schedule(lambda own, batches: (here(), own, next(batches)), (numbers, iterator))
    for _ in range(3)
])
assert all(own == 100 * worker for worker, own, _ in seen)
for worker in {worker for worker, *_ in seen}:
    drawn = sorted(batch for index, _, batch in seen if index == worker)
    assert drawn == list(range(len(drawn)))
assert isinstance(raised(lambda: next(iterator)), NotImplementedError)

def draw_too_many():
    for _ in range(6):
        coordinator.schedule(lambda batches: next(batches), (iterator,))  # this raises it, too
    coordinator.join()

assert isinstance(raised(draw_too_many), rw.errors.OutOfRangeError)

# A closure creates no variable, which no chief would give a first value.
def create():
    with strategy.scope():
        return rw.Variable(np.zeros(2, np.float32), name="inside").read_value()

def create_in_a_closure():
    coordinator.schedule(create)
    coordinator.join()

refusal = raised(create_in_a_closure)
assert isinstance(refusal, ValueError) and "a closure creates variable 'inside'" in str(refusal)

# A dataset can be given instead of a function, and captured; each worker has orders of its own.
rows = rw.data.Dataset.from_tensor_slices(np.arange(16)).shuffle(16).repeat().batch(16)

def first_batches(given):
    iterator, found = iter(coordinator.create_per_worker_dataset(given)), {}
    while len(found) < 2:
        drawn = [coordinator.schedule(lambda own: (here(), next(own)), (iterator,))
                 for _ in range(4)]
        for worker, batch in coordinator.fetch(drawn):
            found.setdefault(worker, batch.tolist())
    assert sorted(found[0]) == sorted(found[1]) == list(range(16))
    assert found[0] != found[1], found
    return found

assert first_batches(rows) == first_batches(lambda: rows)
assert first_batches(strategy.experimental_distribute_dataset(rows)) == first_batches(
    lambda: strategy.distribute_datasets_from_function(lambda context: rows)
)
assert coordinator.schedule(lambda: next(iter(rows)).sum()).fetch() == 120

# The first error is raised once; what was queued is cancelled; then all is well again.
class Own(Exception):
    pass

def fail(kind):
    raise kind("no good")

def hold(path):
    while not os.path.exists(path):
        time.sleep(0.01)

go_on = os.path.abspath("go_on")
for _ in range(2):  # workers are held until all is scheduled
    coordinator.schedule(hold, (go_on,))
first = coordinator.schedule(fail, (ValueError,))
queued = [coordinator.schedule(time.sleep, (0.05,)) for _ in range(20)]
open(go_on, "w").close()
error = raised(coordinator.join)
assert isinstance(error, ValueError) and "in fail" in error.__notes__[0], error
assert raised(first.fetch) is error
assert isinstance(raised(queued[-1].fetch), rw.errors.CancelledError)
assert coordinator.done()
assert str(queued[-1].status) == "aborted" and str(first.status) == "aborted"
coordinator.schedule(fail, (Own,))
error = raised(coordinator.join)
assert type(error) is rw.errors.ClosureError and str(error) == "Own: no good"

# What cannot be sent is said where it is scheduled, or raised as the closure's error.
assert isinstance(raised(lambda: coordinator.schedule(print, (first,))), ValueError)
assert isinstance(raised(lambda: coordinator.schedule(3)), TypeError)
assert isinstance(raised(lambda: coordinator.schedule(print, (threading.Lock(),))), TypeError)
for function, text in [(lambda: object(), "cannot be sent"), (lambda: lambda: 0, "cannot be sent")]:
    coordinator.schedule(function)
    error = raised(coordinator.join)
    assert isinstance(error, TypeError) and text in str(error), error
coordinator.schedule(sys.exit, (3,))
assert str(raised(coordinator.join)) == "SystemExit: 3"

# An argument is what it was when it was scheduled.
array = np.zeros(300_000)
sums = []
for number in range(8):
    array += 1
    sums.append(coordinator.schedule(lambda given: given.sum(), (array,)))
assert coordinator.fetch(sums) == [300_000.0 * n for n in range(1, 9)]

# Results of any size, and of nested structures.
large = coordinator.schedule(lambda: {"a": [np.arange(5_000_000), (1, None)]}).fetch()
assert large["a"][0].sum() == 4_999_999 * 2_500_000 and large["a"][1] == (1, None)
sent = coordinator.schedule(lambda array: array.sum(), (np.ones(5_000_000),))
assert coordinator.fetch({"x": [sent, 7]}) == {"x": [5_000_000, 7]}
assert rw.distribute.coordinator.ClusterCoordinator(strategy) is coordinator
assert isinstance(
    raised(lambda: rw.distribute.coordinator.ClusterCoordinator(None)), ValueError
)
assert isinstance(raised(here), RuntimeError)
print("all is as it should be")
"""

LOSSES = """
import helper

def work(number):
    helper.pause()
    return number

numbers = coordinator.create_per_worker_values(lambda: [])

def remember(own):
    own.append(0)
    return len(own), here()

def wait_for_another(before):
    while pids()[1] == before:  # both are there again
        pass
    while (found := coordinator.schedule(remember, (numbers,)).fetch())[1] != 1:
        pass
    return found[0]

workers = pids()
results = [coordinator.schedule(work, (number,)) for number in range(40)]
os.kill(workers[1], 9)
assert coordinator.fetch(results) == list(range(40))
print("lost one, and all were run; its next process has", wait_for_another(workers[1]), flush=True)

workers = pids()
print("kill the worker", flush=True)
print("the next worker has", wait_for_another(workers[1]), "value", flush=True)
"""

LEAVES = """
def train(number):
    for _ in range(20):
        learn()
        time.sleep(0.02)
    return number

def learn():
    gradient = np.ones((4, 2), np.float32)
    strategy.run(lambda: optimizer.apply_gradients([(gradient, table)]))

pids()
results = [coordinator.schedule(train, (number,)) for number in range(12)]
results[0].fetch()
print("ask a worker to stop", flush=True)
assert coordinator.fetch(results) == list(range(12))
"""

# Every way in which a closure can end its process, in the middle of its pushes.
ENDS = """
import ctypes

def is_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

ends = [
    lambda: os.kill(os.getpid(), 9),
    lambda: os._exit(0),
    lambda: ctypes.string_at(0),
    os.abort,
]

def push(number, mark):
    def replica():
        optimizer.apply_gradients([(np.full((4, 2), -1, np.float32), table)])
        count.assign_add(np.ones(4, np.int64))

    for part in range(4):
        strategy.run(replica)
        table.scatter_add(rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([part])))
        if part == number % 4 and is_first(f"{mark}-{number}"):
            ends[number % 4]()
    return number

mark = os.path.abspath("ended")
results = [coordinator.schedule(push, (number, mark)) for number in range(8)]
assert sorted(coordinator.fetch(results)) == list(range(8))
assert count.numpy().tolist() == [32] * 4, count.numpy()
assert table.numpy().tolist() == [[40, 40]] * 4, table.numpy()
assert strategy.global_step == 32, strategy.global_step
print("every push was applied once", flush=True)

# One that ends every process is given up, and what was scheduled beside it is not.
beside = [coordinator.schedule(abs, (-number,)) for number in range(4)]
poison = coordinator.schedule(lambda: os._exit(1))
error = raised(coordinator.join)
assert type(error) is rw.errors.ClosureError and "lost one after the other" in str(error), error
assert raised(poison.fetch) is error
assert coordinator.fetch(beside) == [0, 1, 2, 3]
print("a closure was given up", flush=True)
"""

FAULTS = """
import re
import subprocess

# A closure that never ends, in Python or in C, is over at its deadline; so is what it has begun.
def forever():
    subprocess.Popen(["sleep", "600"])
    while True:
        time.sleep(1)

def backtracks():
    re.match("(a+)+b", "a" * 64)

assert isinstance(raised(lambda: coordinator.schedule(abs, (1,), deadline_s=0)), ValueError)
for function in (forever, backtracks):
    began = time.monotonic()
    late = coordinator.schedule(function, deadline_s=0.5)
    error = raised(coordinator.join)
    assert isinstance(error, rw.errors.DeadlineExceededError), error
    assert "deadline_s=0.5" in str(error) and raised(late.fetch) is error
    assert coordinator.schedule(abs, (-3,), deadline_s=60).fetch() == 3
print("deadlines are kept", flush=True)
pids()  # both work again

# The function of a dataset may fail on one worker alone.
def dataset_fn():
    if here() == 1:
        raise OSError("no disk on worker 1")
    return range(100)

iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
heard = set()
while len(heard) < 2:
    one = coordinator.schedule(lambda batches: next(batches) >= 0, (iterator,))
    try:
        heard.add(one.fetch())
    except OSError as error:
        heard.add(str(error))
        raised(coordinator.join)
assert heard == {True, "no disk on worker 1"}, heard

# Results and exceptions of every kind.
class Nasty(Exception):
    def __init__(self, one, two):
        pass
    def __str__(self):
        raise RuntimeError("no text")
    def __reduce__(self):
        raise RuntimeError("not to be pickled")

def fail():
    raise Nasty(1, 2)

coordinator.schedule(fail)
error = raised(coordinator.join)
assert type(error) is rw.errors.ClosureError and "Nasty" in str(error), error
coordinator.schedule(lambda: np.zeros(1 << 30, np.uint8))
error = raised(coordinator.join)
assert isinstance(error, rw.errors.LimitExceededError), error
assert "ROPEWALK_MAX_STEP_BYTES" in str(error)

# What a closure forks answers nothing, and its parent's answer counts.
def fork():
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return bool(pid)

assert coordinator.fetch([coordinator.schedule(fork) for _ in range(4)]) == [True] * 4
before = pids()
coordinator.schedule(sys.exit, (0,))
assert "SystemExit" in str(raised(coordinator.join))
assert pids() == before
print("kill a ps", flush=True)

def train():
    while True:
        count.assign_add(np.ones(4, np.int64))

coordinator.schedule(train)
coordinator.join()
"""


SLOW = """
iterator = iter(coordinator.create_per_worker_dataset(lambda: range(10 * here(), 10**9)))
assert coordinator.schedule(lambda own: (here(), next(own)), (iterator,)).fetch() == (0, 0)
print("one worker is there", flush=True)
while (found := coordinator.schedule(lambda own: (here(), next(own)), (iterator,)).fetch())[0] != 1:
    pass
assert found == (1, 10)

# Whoever runs it first holds it up, in the middle of its updates.
def add(mark, release):
    count.assign_add(np.ones(4, np.int64))
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        while not os.path.exists(release):
            time.sleep(0.01)
    count.assign_add(np.ones(4, np.int64))

mark, release = os.path.abspath("mark"), os.path.abspath("release")
coordinator.schedule(add, (mark, release)).fetch(timeout_s=60)
assert count.numpy().tolist() == [2] * 4, count.numpy()
open(release, "w").close()
pids()  # the slow one goes on, and what it pushes late is no news
assert count.numpy().tolist() == [2] * 4, count.numpy()
print("the first answer counts")

# The connection breaks while the closure goes on: it is run elsewhere, and may push no more.
mark, release = os.path.abspath("another mark"), os.path.abspath("another release")
result = coordinator.schedule(add, (mark, release))
while not os.path.exists(mark):
    time.sleep(0.01)
for link in coordinator._dispatcher._links.values():
    link.drop()
result.fetch(timeout_s=60)
assert count.numpy().tolist() == [4] * 4, count.numpy()
open(release, "w").close()
pids()
assert count.numpy().tolist() == [4] * 4, count.numpy()
print("a broken connection repeats nothing")
"""


def test_the_program_of_the_page_as_the_page_starts_it(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(examples(ROOT / "docs" / "coordinator.md")[0])
    done = run_cli("local", "--coordinator", "--workers", "2", "--ps", "2", "--plain", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"chief:0 \| epoch 2: loss 0\.0000\d", done.stdout), done.stdout
    assert "weights [1. 2. 3.]" in done.stdout


TABLES = """
with strategy.scope():
    embeddings = rw.embedding.Embeddings(
        [rw.embedding.FeatureConfig("user", rw.embedding.TableConfig("users", dim=2))],
        rw.optimizers.SGD(1.0),
    )

def train(key):
    rows = embeddings.lookup({"user": [key, -1]})
    rows.apply_gradients({"user": np.ones((2, 2), np.float32)})

before = embeddings.lookup({"user": [5, -1]})["user"]
for key in range(10):
    coordinator.schedule(train, (key,))
coordinator.join()
after = embeddings.lookup({"user": [5, -1]})["user"]
np.testing.assert_allclose(after, before - [[1], [10]], rtol=1e-5)
print("each closure has trained the rows of its keys once")
"""


@pytest.mark.annex("embedding")
def test_closures_train_tables_that_grow(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGINNING + TABLES)
    done = run_cli("local", "--coordinator", "--workers", "2", "--ps", "2", "--plain", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has trained the rows of its keys once" in done.stdout


def test_closures_values_errors_and_results(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGINNING + BEHAVIOUR)
    done = run_cli("local", "--coordinator", "--workers", "2", "--ps", "2", "--plain", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is as it should be" in done.stdout
    assert "lost" not in done.stdout
    assert "waiting for worker" not in done.stdout.partition("all is as it should be")[2]


class Started:
    """A chief with a program, two ps and two workers, started by hand."""

    def __init__(
        self, start: StartCli, folder: Path, program: str, *, workers: int = 2, **environment: str
    ) -> None:
        self._start = start
        self._environment = environment
        self._configs = tf_configs(chief=1, ps=2, worker=2)
        self._where = ["--model-dir", str(folder / "model")]
        # Workers have none of the program's files.
        (folder / "program").mkdir()
        (folder / "program" / "train.py").write_text(program)
        self.servers = [self._run(f"ps:{index}", "ps", *self._where) for index in range(2)]
        self.workers = [self.start_worker(index) for index in range(workers)]
        self.chief, self._said = self._run("chief:0", "chief", *self._where, "program/train.py")

    def address(self, worker: int) -> str:
        cluster = json.loads(self._configs[f"worker:{worker}"])["cluster"]
        return str(cluster["worker"][worker])

    def start_worker(self, index: int) -> tuple[subprocess.Popen[bytes], Path]:
        return self._run(f"worker:{index}", "worker")

    def said(self) -> str:
        """By the chief."""
        return self._said.read_text()

    def has_said(self, text: str) -> bool:
        return text in self.said() or self.chief.poll() is not None

    def _run(self, task: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        quick = ["--heartbeat-s", "0.1", "--lease-s", "2"]
        flags = [command[0], *quick, *command[1:]]
        return self._start(*flags, TF_CONFIG=self._configs[task], **self._environment)


def test_a_killed_worker_s_closures_are_run_elsewhere_and_it_may_come_back(
    tmp_path: Path, start_cli: StartCli, wait_until: WaitUntil
) -> None:
    """Its process of closures by itself, the worker when somebody starts it again."""
    job = Started(start_cli, tmp_path, BEGINNING + LOSSES)
    helper = "import time\ndef pause():\n    time.sleep(0.05)\n"
    (tmp_path / "program" / "helper.py").write_text(helper)
    wait_until(lambda: job.has_said("kill the worker"), 60, "the loss of a process")
    assert "its next process has 1" in job.said()
    worker, said = job.workers[1]
    assert "was ended by SIGKILL; a new one takes its place" in said.read_text()
    worker.kill()
    assert worker.wait(scaled(10)) == -signal.SIGKILL
    again, _ = job.start_worker(1)
    assert job.chief.wait(scaled(60)) == 0, job.said()
    assert "the next worker has 1 value" in job.said()
    assert "its closures are run elsewhere" in job.said()
    for process in (*(ps for ps, _ in job.servers), job.workers[0][0], again):
        assert process.wait(scaled(20)) == 0


def test_a_worker_that_is_asked_to_stop_leaves_its_closure_to_the_others(
    tmp_path: Path, start_cli: StartCli, wait_until: WaitUntil
) -> None:
    """As one that is evicted: what it was to do is no failure of the program."""
    job = Started(start_cli, tmp_path, BEGINNING + LEAVES)
    wait_until(lambda: job.has_said("ask a worker to stop"), 60, "the first closures")
    worker, _ = job.workers[1]
    worker.terminate()
    assert worker.wait(scaled(20)) == 143
    assert job.chief.wait(scaled(60)) == 0, job.said()
    assert "its closures are run elsewhere" in job.said()


def test_a_worker_that_starts_late_is_used_and_runs_what_a_slow_one_holds_up(
    tmp_path: Path, start_cli: StartCli, wait_until: WaitUntil
) -> None:
    made = "ClusterCoordinator(strategy"
    beginning = BEGINNING.replace(made, f"{made}, redispatch_after_s=0.3")
    job = Started(start_cli, tmp_path, beginning + SLOW, workers=1)
    wait_until(lambda: job.has_said("one worker is there"), 60, "the first worker")
    late, _ = job.start_worker(1)
    assert job.chief.wait(scaled(60)) == 0, job.said()
    assert "the first answer counts" in job.said()
    assert "a broken connection repeats nothing" in job.said()
    for process in (*(ps for ps, _ in job.servers), job.workers[0][0], late):
        assert process.wait(scaled(20)) == 0


def test_a_closure_that_ends_its_process_is_run_again_and_its_updates_applied_once(
    tmp_path: Path, start_cli: StartCli
) -> None:
    job = Started(start_cli, tmp_path, BEGINNING + ENDS)
    assert job.chief.wait(scaled(90)) == 0, job.said()
    assert "every push was applied once" in job.said()
    assert "a closure was given up" in job.said()
    logs = "".join(said.read_text() for _, said in job.workers)
    for end in ("by SIGKILL", "with exit code 0", "by SIGSEGV", "by SIGABRT", "with exit code 1"):
        assert f"was ended {end}; a new one takes its place" in logs, logs
    for process, _ in (*job.servers, *job.workers):
        assert process.wait(scaled(20)) == 0


def test_closures_that_do_not_end_or_return_what_nobody_can_send_and_a_lost_ps(
    tmp_path: Path, start_cli: StartCli, wait_until: WaitUntil
) -> None:
    limits: dict[str, Any] = {
        "ROPEWALK_MAX_STEP_BYTES": str(64 << 20),
        "ROPEWALK_RECONNECT_TIMEOUT_S": "1",
    }
    job = Started(start_cli, tmp_path, BEGINNING + FAULTS, **limits)
    wait_until(lambda: job.has_said("kill a ps"), 90, "the faults before it")
    assert "deadlines are kept" in job.said(), job.said()
    logs = "".join(said.read_text() for _, said in job.workers)
    assert "in forever" in logs, "the worker's log shows where it was"
    job.servers[0][0].kill()
    assert job.chief.wait(scaled(60)) == ExitCode.PEER_LOST, job.said()
    for process, said in job.workers:
        assert process.wait(scaled(30)) == ExitCode.PEER_LOST, said.read_text()
    job.servers[1][0].wait(scaled(30))


STRANGER = """
import sys
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.dial import Dialer
from ropewalk.net.dial import reach
from ropewalk.proto.v1 import session_pb2

who = Incarnation(TaskId(sys.argv[1], 0), 1 << 40)
hello = session_pb2.Hello(service="closures")
reach(Dialer(sys.argv[2], "it", hello, who, Settings()), Settings(), 5, peer="it")
print("let in")
"""


def test_only_whoever_leads_may_send_functions(
    tmp_path: Path, start_cli: StartCli, wait_until: WaitUntil
) -> None:
    ready = "coordinator.schedule(os.getpid).fetch()\nprint('ready', flush=True)\n"
    job = Started(start_cli, tmp_path, f"{BEGINNING}\n{ready}\ntime.sleep(600)\n")
    wait_until(lambda: job.has_said("ready"), 60, "the program")
    for role in ("worker", "evaluator", "reader", "driver", "ps"):
        code, said, errors = processes.run(
            [sys.executable, "-c", STRANGER, role, job.address(1)],
            timeout_s=scaled(30),
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert code != 0, said
        assert "PermissionDeniedError" in errors, errors
    job.chief.terminate()
    assert job.chief.wait(scaled(30)) == 143, job.said()
    for process, said_by in (*job.servers, *job.workers):
        assert process.wait(scaled(30)) == 143, said_by.read_text()


def test_a_cluster_that_cannot_have_a_coordinator_is_refused(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    done = run_cli("local", "--coordinator", "--workers", "0", "train.py")
    assert done.returncode == 2
    assert "at least one worker" in done.stderr


EXAMPLE = ROOT / "examples" / "coordinator" / "train.py"


def test_one_program_for_every_role_as_tensorflow_s_tutorial_has_it(tmp_path: Path) -> None:
    """Workers and ps make a Server and wait for it."""
    configs = tf_configs(chief=1, ps=2, worker=2)
    model = str(tmp_path / "model")
    job = HandStarted(
        ["python", str(EXAMPLE)], configs, tmp_path,
        ROPEWALK_MODEL_DIR=model, ROPEWALK_HEARTBEAT_S="0.1",
    )  # fmt: skip
    ended = job.wait(90)
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(configs, 0), ended
    assert "accuracy on new dishes" in ended["chief:0"].text
    for task in ("worker:0", "worker:1"):  # they may say that they wait, and print nothing
        assert "epoch" not in ended[task].text, ended


def test_servers_and_coordinator_in_one_process_as_tensorflow_s_tutorial_has_it(
    tmp_path: Path,
) -> None:
    code, said, errors = processes.run(
        [sys.executable, str(EXAMPLE.parent / "in_one_process.py")],
        timeout_s=scaled(60),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert code == 0, errors
    assert "weights [1. 2. 3.]" in said
    assert "Traceback" not in errors


def test_a_server_ends_in_order_when_it_is_asked_to(tmp_path: Path, wait_until: WaitUntil) -> None:
    program = tmp_path / "serve.py"
    (port,) = free_ports(1)
    program.write_text(
        "import ropewalk as rw\n"
        f"cluster = {{'ps': ['127.0.0.1:{port}'], 'chief': ['127.0.0.1:1']}}\n"
        "server = rw.distribute.Server(cluster, 'ps')\n"
        "print(server.target, flush=True)\nserver.join()\n"
    )
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = processes.start(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={**os.environ, "ROPEWALK_MODEL_DIR": str(tmp_path / "model")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    wait_until(lambda: f"grpc://127.0.0.1:{port}" in said.read_text(), 30, "the server")
    process.terminate()
    assert process.wait(scaled(20)) == 144, said.read_text()
    assert "Traceback" not in said.read_text()
