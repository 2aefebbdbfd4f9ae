"""The pods of a TFJob on a network: an address each, late names, packets lost, a link cut.

``TF_CONFIG`` is what training-operator writes (kubeflow/trainer, pkg/controller.v1/tensorflow), in
its forms A to E: docs/cluster.md.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.clusters import as_command
from helpers.network import Network
from helpers.tls_files import issued, write
from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.needs("a bridged network"),
    pytest.mark.real_start,
    pytest.mark.usefixtures("no_process_left"),
]
Json = dict[str, Any]
JOB, PORT = "mnist", 2222
SERVICES = "mnist-{role}-{index}.training.svc:2222"
QUICK = {
    "ROPEWALK_HEARTBEAT_S": "0.1",
    "ROPEWALK_JOIN_TIMEOUT_S": "60",
    # These hosts share the memory of one machine, which those of a cluster do not.
    "ROPEWALK_SHARED_MEMORY": "false",
}


NO_FLAGS: Mapping[str, tuple[str, ...]] = {}


def service(role: str, index: int) -> str:
    return SERVICES.format(role=role, index=index)


def tf_config(form: str, counts: Mapping[str, int], role: str, index: int) -> str:
    """What training-operator gives a pod: A by default, B under ``enableDynamicWorker`` (D for its
    chief), C the same before 1.7.
    """
    task = {"type": role, "index": index}
    if form == "A":
        cluster: Json = {r: [service(r, i) for i in range(n)] for r, n in counts.items()}
        return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
    every_ps = [service("ps", i) for i in range(counts["ps"])]
    told: dict[str, Json] = {
        "worker": {"worker": {str(index): service("worker", index)}, "ps": every_ps},
        "ps": {"worker": {}, "ps": [service("ps", index)]},
        "chief": {"worker": {}, "ps": []},
    }
    return json.dumps({{"B": "cluster", "C": "sparseCluster"}[form]: told[role], "task": task})


@dataclass(frozen=True, slots=True)
class TFJob:
    """Its pods, each a process on a host of its own."""

    network: Network
    running: dict[str, subprocess.Popen[Any]]
    folder: Path

    def said(self, pod: str) -> str:
        return (self.folder / f"{pod}.txt").read_text()

    def codes(self) -> dict[str, int]:
        return {pod: process.wait(scaled(60)) for pod, process in self.running.items()}

    def texts(self) -> str:
        return "\n".join(f"== {pod}\n{self.said(pod)}" for pod in self.running)


Apply = Callable[..., TFJob]


@pytest.fixture
def apply(tmp_path: Path) -> Iterator[Apply]:
    """``apply(form, counts, words, flags=…, own=…, **environment)``: start a TFJob of that form;
    ``flags`` are those of a role, ``own`` gives a pod's variables.
    """
    with ExitStack() as stack:

        def start(
            form: str,
            counts: Mapping[str, int],
            words: list[str],
            *,
            flags: Mapping[str, tuple[str, ...]] = NO_FLAGS,
            own: Callable[[str, int], Mapping[str, str]] = lambda role, index: {},
            **environment: str,
        ) -> TFJob:
            pods = {f"{JOB}-{r}-{i}": (r, i) for r, n in counts.items() for i in range(n)}
            names = {pod: service(*task).partition(":")[0] for pod, task in pods.items()}
            network = Network(names, tmp_path)
            stack.callback(network.close)
            job = TFJob(network, {}, tmp_path)
            stack.callback(_end, job)
            for pod, (role, index) in pods.items():
                config = {} if form == "E" else {"TF_CONFIG": tf_config(form, counts, role, index)}
                command = as_command(["ropewalk", "run", *flags.get(role, ()), *words])
                with (tmp_path / f"{pod}.txt").open("wb") as output:
                    job.running[pod] = processes.start(
                        network.command(pod, command),
                        cwd=tmp_path,
                        env={**os.environ, **QUICK, **config, **own(role, index), **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
            return job

        yield start


def _end(job: TFJob) -> None:
    for process in job.running.values():
        if process.poll() is None:
            process.kill()
        process.wait(10)


def check_final(model_dir: Path, steps: int) -> None:
    saved = latest_checkpoint(str(model_dir))
    assert saved is not None
    assert saved.global_step >= steps
    assert CheckpointReader(saved.path).manifest.final


@pytest.mark.needs("packets lost by iptables")
def test_a_job_with_certificates_trains_though_names_are_late_and_packets_are_lost(
    apply: Apply,
    write_program: Callable[..., str],
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    def credentials(role: str, index: int) -> dict[str, str]:
        name = service(role, index).partition(":")[0]
        files = write(
            tmp_path / f"{role}-{index}", issued(role, index, job=JOB, hosts=(name, "localhost"))
        )
        return {f"ROPEWALK_{key.upper()}": str(value) for key, value in files.items()}

    counts = {"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}
    model = tmp_path / "model"
    words = [write_program(), "60", "0.002"]
    job = apply(
        "A", counts, words, own=credentials, ROPEWALK_JOB_ID=JOB,
        ROPEWALK_MODEL_DIR=str(model), ROPEWALK_WAIT_FOR_WORKERS="1",
    )  # fmt: skip
    job.network.lose_packets("mnist-ps-0", 0.03)
    for pod in ("mnist-chief-0", "mnist-worker-0"):
        wait_until(
            lambda pod=pod: "waits for the chief at" in job.said(pod), 40, f"a word of {pod}"
        )
    job.network.publish()
    assert set(job.codes().values()) == {0}, job.texts()
    check_final(model, 60)
    assert "(final)" in job.said("mnist-evaluator-0")


# Under enableDynamicWorker a chief is told nothing, and worker 0 not that there is one.
DYNAMIC = {"chief": 1, "ps": 2, "worker": 1}
FLAGS = {
    "chief": ("--replicas", "chief=1,ps=2,worker=1", "--host-template", SERVICES),
    "worker": ("--chief", service("chief", 0)),
}


def test_a_worker_whose_link_is_cut_goes_on_when_it_is_back_and_leaves_when_asked(
    apply: Apply,
    write_program: Callable[..., str],
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    program = write_program("if count % 10 == 0: print(f'after {count}', flush=True)")
    words = ["--insecure", program, "1000000", "0.005"]
    job = apply("B", DYNAMIC, words, flags=FLAGS, ROPEWALK_MODEL_DIR=str(tmp_path / "model"))
    job.network.publish()
    worker, chief = "mnist-worker-0", "mnist-chief-0"

    def steps(pod: str) -> int:
        return job.said(pod).count("after ")

    wait_until(lambda: steps(worker) > 1, 40, "the worker's steps")
    job.network.set_link(worker, "down")
    before, cut = steps(chief), steps(worker)
    wait_until(lambda: steps(chief) > before + 10, 40, "the chief goes on")
    during = steps(worker)
    assert during <= cut + 2  # what was under way
    job.network.set_link(worker, "up")
    wait_until(lambda: steps(worker) > during + 5, 40, "the worker goes on")

    job.running[chief].terminate()
    assert set(job.codes().values()) == {143}, job.texts()
    assert latest_checkpoint(str(tmp_path / "model")) is not None


def test_a_job_of_older_dynamic_workers_trains_without_a_chief(
    apply: Apply, write_program: Callable[..., str], tmp_path: Path
) -> None:
    words = ["--insecure", write_program(), "60", "0"]
    model = tmp_path / "model"
    job = apply("C", {"ps": 1, "worker": 1}, words, ROPEWALK_MODEL_DIR=str(model))
    job.network.publish()
    assert set(job.codes().values()) == {0}, job.texts()
    check_final(model, 60)


def test_a_job_of_one_replica_trains_alone(
    apply: Apply, write_program: Callable[..., str], tmp_path: Path
) -> None:
    job = apply("E", {"chief": 1}, [write_program(), "30", "0"])
    assert set(job.codes().values()) == {0}, job.texts()
    assert "has done 5 steps" in job.said("mnist-chief-0")


@pytest.mark.needs("packets delayed by tc")
def test_a_slow_link_is_trained_over(
    apply: Apply, write_program: Callable[..., str], tmp_path: Path
) -> None:
    words = ["--insecure", write_program(), "40", "0"]
    counts = {"chief": 1, "ps": 1}
    job = apply("A", counts, words, ROPEWALK_MODEL_DIR=str(tmp_path / "model"))
    job.network.delay_packets("mnist-ps-0", 20)
    job.network.publish()
    assert set(job.codes().values()) == {0}, job.texts()
    check_final(tmp_path / "model", 40)
