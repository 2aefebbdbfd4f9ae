"""A job as a batch script for Slurm: one step, whose tasks find each other by its variables.

Slurm starts equal processes; ``ropewalk run --replicas`` divides them among roles by rank, in the
order of the roles' names (``cluster/resolvers/slurm.py``). Where roles differ in what they
run, the script's tasks choose by their rank.
"""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ...cluster.spec import TASK_TYPES
from ...core.errors import ConfigurationError
from .model import JobFile
from .plan import ANY_ROLE, SLURM, SLURM_SHARED, Place, plan_task, variables

_MEBIBYTE = 1024 * 1024
_ANSWER_S = 60


def slurm_script(job: JobFile, folder: str) -> str:
    """Write the batch script of a job. Pure.

    Args:
        job: The job.
        folder: Folder of the job file, absolute; all nodes must see it.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(job)), ""]
    lines += [
        "# All processes of the step are alike; their ranks make them tasks, in this order:",
        f"#   {_ranks_text(job)}",
        "set -euo pipefail",
        f"cd {shlex.quote(folder)}",
        *job.slurm.setup,
    ]
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in _variables(job, folder).items()
    ]
    lines.append("")
    step = ["exec srun", "--label", "--kill-on-bad-exit=0"]
    if job.slurm.nodes:
        step.append("--distribution=block")
    commands = {role: _command(job, role, folder) for role in _roles(job)}
    if len(set(commands.values())) == 1:
        lines.append(f"{' '.join(step)} {next(iter(commands.values()))}")
        return "\n".join(lines) + "\n"
    by_rank = _by_rank(job, commands)
    end = "END"
    while end in "\n".join(by_rank).split("\n"):  # an argument of several lines
        end += "_"
    lines += [f"read -r -d '' TASK <<'{end}' || true", *by_rank, end]
    lines.append(f'{" ".join(step)} bash -c "$TASK"')
    return "\n".join(lines) + "\n"


def _options(job: JobFile) -> list[str]:
    """List the options of sbatch. Tasks of one step get the same, so the largest need counts."""
    slurm = job.slurm
    needs = [role.resources for _, role in job.present]
    cpus = max(1, -(-max(need.millicpu for need in needs) // 1000))
    memory = -(-max(need.memory_bytes for need in needs) // _MEBIBYTE)
    gpus = max(need.gpu for need in needs)
    return [
        f"--job-name={job.name}",
        f"--ntasks={len(job.tasks)}",
        *([f"--nodes={slurm.nodes}"] if slurm.nodes else []),
        f"--cpus-per-task={cpus}",
        f"--mem-per-cpu={-(-memory // cpus)}M",
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        *([f"--partition={slurm.partition}"] if slurm.partition else []),
        *([f"--account={slurm.account}"] if slurm.account else []),
        *([f"--time={slurm.time}"] if slurm.time else []),
        # To the tasks, which then save; a job that is requeued goes on from there.
        f"--signal=TERM@{slurm.grace_s}",
        "--requeue",
        "--open-mode=append",
        f"--output={job.name}-%j.log",
        *slurm.options,
    ]


def _variables(job: JobFile, folder: str) -> dict[str, str]:
    """Collect the variables of every task. The job's id is Slurm's own, which a requeued job
    keeps.
    """
    place = Place(
        checkpoints=f"{folder}/runs",
        address={
            "ROPEWALK_REPLICAS": job.replicas(_roles(job)),
            "ROPEWALK_PORT": str(job.slurm.port),
        },
    )
    return variables(job, ANY_ROLE, place, SLURM_SHARED)


def _roles(job: JobFile) -> list[str]:
    """List the roles with tasks, in the order in which ranks are given to them."""
    return sorted(role for role in TASK_TYPES if job.count(role))


def _command(job: JobFile, role: str, folder: str) -> str:
    """Write the command of a role's tasks, with the variables that only its role has."""
    where = str(Path(folder) / job.security.folder / role)
    plan = plan_task(job, role, Place(tls=where, token=where), SLURM)
    own = [f"{name}={value}" for name, value in plan.environment.items()]
    return shlex.join([*(["env", *own] if own else []), *plan.command])


def _by_rank(job: JobFile, commands: dict[str, str]) -> list[str]:
    lines, first = list[str](), 0
    for role in _roles(job):
        first += job.count(role)
        word = "if" if not lines else "elif"
        lines.append(f'{word} [ "$SLURM_PROCID" -lt {first} ]; then exec {commands[role]}')
    return [*lines, "fi"]


def _ranks_text(job: JobFile) -> str:
    parts, first = [], 0
    for role in _roles(job):
        last = first + job.count(role) - 1
        parts.append(f"{role} {first}" + (f"-{last}" if last > first else ""))
        first = last + 1
    return ", ".join(parts)


class SlurmLauncher:
    """Slurm's sbatch.

    Args:
        folder: Folder of the job file; all nodes must see it.
        command: Command that takes a script on its standard input.
    """

    def __init__(self, folder: Path, command: Sequence[str] = ("sbatch", "--parsable")) -> None:
        self._folder = folder
        self._command = list(command)
        self.job_id = ""

    def render(self, job: JobFile) -> str:
        """Render the batch script."""
        return slurm_script(job, str(self._folder.resolve()))

    def start(self, job: JobFile) -> int:
        """Hand the script to Slurm; 0. Its number is then in ``job_id``."""
        try:
            done = subprocess.run(
                self._command,
                input=self.render(job),
                text=True,
                capture_output=True,
                check=False,
                # Unless the user wants sbatch to wait for the job's end.
                timeout=None if "--wait" in job.slurm.options else _ANSWER_S,
                cwd=self._folder,
            )
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"{self._command[0]} is not in the path; run this where Slurm's commands are, or "
                "take what `ropewalk slurm render` prints there"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ConfigurationError(
                f"sbatch did not answer within {_ANSWER_S} s; `scontrol ping` says whether Slurm "
                "is up"
            ) from error
        if done.returncode:
            raise ConfigurationError(f"sbatch refuses the job: {done.stderr.strip()}")
        self.job_id = done.stdout.strip().partition(";")[0]
        return 0
