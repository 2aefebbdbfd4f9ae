"""A job on a real Slurm cluster: ``E2E_SLURM=1 pytest tests/annex/jobfile/test_real_slurm.py``.

``srun`` must be in the path and reach a cluster whose nodes share the folder of temporary files.
``E2E_SLURM_FLAGS`` are its flags, by default ``--nodes=1 --ntasks-per-node=4``: four tasks.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.waiting import scaled

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.needs("a Slurm cluster"),
]

SHOW = """\
import os
from ropewalk.cluster.resolvers.launchers import launcher_resolver
here = launcher_resolver()
place = os.environ["SLURMD_NODENAME"], 8888 + int(os.environ["SLURM_LOCALID"])
assert here.master("worker", int(os.environ["SLURM_PROCID"]), "") == "grpc://%s:%d" % place
print("as placed")
"""


def srun(*command: str, **environment: str) -> str:
    flags = os.environ.get("E2E_SLURM_FLAGS", "--nodes=1 --ntasks-per-node=4").split()
    result = subprocess.run(
        ["srun", "--ntasks=4", *flags, *command],  # noqa: S607
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_every_rank_is_where_it_is_taken_to_be(distribution: str) -> None:
    said = srun(f"--distribution={distribution}", sys.executable, "-c", SHOW)
    assert said.split("\n").count("as placed") == 4


def test_a_job_trains_and_ends_in_order(write_program: Callable[..., str], tmp_path: Path) -> None:
    roles = ["--replicas", "chief=1,ps=1,worker=2", "--model-dir", str(tmp_path / "model")]
    command = [*processes.ROPEWALK, "run", "--insecure", *roles, write_program(), "100", "0.002"]
    said = srun(*command)
    for task in ("chief:0", "worker:1", "worker:2"):
        assert f"{task} has done 5 steps" in said
    assert list((tmp_path / "model").glob("ckpt-*"))


JOB = """\
name: by-file
program: train.py
arguments: [100, 0.002]
roles: {chief: {count: 1}, ps: {count: 1}, worker: {count: 2}}
security: {mode: insecure}
slurm: {port: 9300, options: [--wait, --nodes=1]}
"""


@pytest.mark.needs("sbatch")
def test_a_job_file_is_submitted_and_trains(
    write_program: Callable[..., str], tmp_path: Path
) -> None:
    write_program()  # as train.py
    (tmp_path / "ropewalk.yaml").write_text(JOB)
    folder = str(Path(sys.executable).parent)  # of the command `ropewalk`
    result = subprocess.run(
        [*processes.ROPEWALK, "slurm", "submit", "--job", "ropewalk.yaml"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        # `--wait` lets sbatch end with the job.
        timeout=scaled(120),
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (output,) = tmp_path.glob("by-file-*.log")
    said = output.read_text()
    for task in ("chief:0", "worker:1", "worker:2"):
        assert f"{task} has done 5 steps" in said
    assert list((tmp_path / "runs" / "by-file").glob("ckpt-*"))
