"""Settings of a task: one frozen value, read from flags, then ``ROPEWALK_*``, then these defaults.

This module and the TF_CONFIG resolver are the only readers of the environment.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import ConfigurationError

# glibc copies past the caches only from three quarters of the last-level cache on, which on large
# servers is more than any step. Copies of several MiB are a third faster past them. Read when a
# process starts.
GLIBC_TUNABLES = "glibc.cpu.x86_non_temporal_threshold=0x400000"
_PREFIX = "ROPEWALK_"
CLUSTER_VARIABLE = "ROPEWALK_CLUSTER"
"""Variable with the address of the standalone cluster to which programs are sent."""


ALL_WORKERS = -1
"""``wait_for_workers``: all that the cluster lists, for a minute at most."""


class Settings(BaseModel):
    """All settings of a task, in groups. Every field says meaning, unit, and why that default."""

    model_config = ConfigDict(frozen=True)

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a NUL can be in no path, name or address")
        return value

    # -- join and leave ------------------------------------------------------------------------

    join_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="How long a task waits for its peers at start. Late pods and late DNS are "
        "normal: two minutes covers an image pull on a warm node.",
    )
    wait_for_workers: int = Field(
        default=0,
        ge=-1,
        description="The chief's program begins when so many workers have joined; one that resumes "
        "waits a minute at most, since its job may have been scaled down. -1: all of the cluster, "
        "for a minute at most, then those that are there; `ropewalk local` and `ropewalk submit` "
        "say so. Then whoever has made its first step waits for those of the others, a minute at "
        "most. 0: at once; a short job may then be over before some have started, which is well "
        "where the others do their work.",
    )
    heartbeat_s: float = Field(
        default=0.5,
        gt=0,
        description="Time between heartbeats. Small, since they also carry the job's progress.",
    )
    lease_s: float = Field(
        default=10.0,
        gt=0,
        le=86_400,
        description="A task is lost this long after its last heartbeat. Twenty missed ones: a "
        "garbage collection or a page-out is not a death.",
    )
    reconnect_timeout_s: float = Field(
        default=15.0,
        gt=0,
        description="How long a worker tries to get a broken session to a ps back before it "
        "gives the ps up. Longer than a lease, so that the chief has decided by then.",
    )
    request_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Deadline of one step. Covers 64 GiB in chunks on a 10 Gbit/s link. Creating "
        "or restoring variables may take longer; a ps that is gone is noticed by its connection.",
    )
    orphan_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="A ps without a chief for this long ends, and with `chief_returns` a worker. "
        "Longer than a chief's restart. A task that does not answer, and for which its machine "
        "takes connections, is waited for as long: it may hold the interpreter's lock.",
    )
    chief_returns: bool = Field(
        default=False,
        description="Whether a launcher starts a chief again that has ended. Then the other tasks "
        "of a job with ps go on without it for `orphan_timeout_s`, and a chief that alone is asked "
        "to stop saves and leaves the job to the next one. The same on all tasks. `ropewalk local "
        "--restarts` says so to all but its chief, which is only asked to stop with its job.",
    )
    stay_without_chief: bool = Field(
        default=False,
        description="Whether a ps that has had no chief yet stays when `orphan_timeout_s` is over, "
        "and says so once. For launchers that start it again whatever it ends with: the one that a "
        "StatefulSet of Kubernetes starts when the job is over would end and start for ever.",
    )
    drain_grace_s: float = Field(
        default=2.0,
        ge=0,
        description="After a request to stop, how long a program may take to reach its next "
        "step before it is interrupted where it is.",
    )
    leave_grace_s: float = Field(
        default=5.0,
        gt=0,
        description="How long the chief of an ended job waits until the other tasks have been "
        "told.",
    )

    job_id: str = Field(
        default="",
        max_length=64,
        description="Name of the job: tasks of another one are refused. Empty: the chief makes "
        "one, and the others take it; then a job is told from another by who is at work.",
    )

    supervise: bool = Field(
        default=False,
        description="Whether this process is the parent of its task: a task that ends because of "
        "another one is started again, after a short wait. For a container, whose own end is then "
        "about its own task alone, and writes the reason where Kubernetes reads it.",
    )

    # -- bounds --------------------------------------------------------------------------------

    chunk_bytes: int = Field(
        default=512 * 1024,
        ge=4096,
        description="Largest message of a tunnel through gRPC. 256 KiB to 1 MiB moved most bytes "
        "per second through grpcio; below, the per-message cost shows, above, flow control stalls.",
    )
    max_message_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=64 * 1024,
        description="Largest single message accepted, in gRPC calls and in frames. Arrays travel "
        "behind messages; only definitions of very many variables come near.",
    )
    max_step_bytes: int = Field(
        default=4 * 1024**3,
        ge=4096,
        description="Largest payload of one step to one ps.",
    )
    max_variables: int = Field(
        default=1_000_000, ge=1, description="Most shards one ps holds; its tables stay in memory."
    )
    max_ps_bytes: int = Field(
        default=0,
        ge=0,
        description="Most bytes of values and slots that one ps holds: a definition beyond is "
        "refused before memory is taken. 0: four fifths of the memory of its machine or cgroup; "
        "the rest is for steps under way and checkpoints.",
    )
    table_folder: str = Field(
        default="",
        description="Folder of a ps for growing tables with `memory_bytes`: their rows beyond that "
        "lie there, in files without a name that go with the process. On a local disk, for this "
        "user alone (mode 700), made if it is not there. Empty: such a table is refused, since a "
        "program must not fill a disk that it was not given.",
    )
    max_ps_disk_bytes: int = Field(
        default=0,
        ge=0,
        description="Most bytes of `table_folder` that one ps reserves. 0: what is free there, "
        "which is reserved when a table is defined.",
    )
    ps_replicas: int = Field(
        default=1,
        ge=1,
        le=2,
        description="How many ps have each variable, the one that serves it included; the same on "
        "the chief and all ps. With 2 a step is answered when two have it, and a ps that is lost "
        "takes nothing with it: the other goes on. Costs the memory and the work of as many ps.",
    )
    ps_shares: int = Field(
        default=0,
        ge=0,
        le=256,
        description="On how many shares the variables are placed, in a job whose ps may become "
        "more or fewer while it runs: at least as many as there are ps, which lead them in turn. A "
        "share is to a worker what a ps is, so a step takes one request for each. The same on the "
        "chief and all ps. 0: as many as there are ps, and without ps_replicas they stay there.",
    )
    rebalance: bool = Field(
        default=False,
        description="Whether the chief moves shares of the variables between ps, in a job with "
        "ps_shares or ps_replicas 2, when that takes at least a "
        "fifth of its work off a ps and pays within a minute: after failovers one ps may lead them "
        "all. Off, since a move costs a pause of a step and the copy of a share; `ropewalk move` "
        "makes one on request.",
    )
    max_variable_bytes: int = Field(
        default=0,
        ge=0,
        description="Most bytes of values that one ps holds of one variable. 0: as much as "
        "max_ps_bytes.",
    )
    max_sessions: int = Field(
        default=256, ge=1, description="Most workers connected to one ps: each has a thread there."
    )

    # -- network -------------------------------------------------------------------------------

    host: str = Field(
        default="",
        description="Address to bind; empty: loopback if this task's own address is loopback, "
        "otherwise every interface (which needs certificates, tokens or `insecure`).",
    )
    insecure: bool = Field(
        default=False,
        description="The same as `security=insecure`: no encryption, no identity. Must be asked "
        "for: anyone who reaches the port can read and change the model.",
    )
    security: Literal["", "local", "token", "mtls", "insecure"] = Field(
        default="",
        description="How tasks show who they are: `local`, a key that only this user can read; "
        "`token`, a signed token; `mtls`, a certificate; `insecure`, not at all. Empty: what the "
        "files given imply, and `local` on loopback; a network address without any is refused.",
    )
    tls_cert: str = Field(
        default="",
        description="File with this task's certificate, PEM, and those of intermediate CAs behind "
        "it. Read again when it changes. Empty: it shows none.",
    )
    tls_key: str = Field(
        default="", description="File with the key of `tls_cert`, PEM, for this user alone."
    )
    tls_ca: str = Field(
        default="",
        description="File with the CA that signed the certificates of this job, PEM; during a "
        "change of CA, both. Needed to dial over TLS.",
    )
    key_file: str = Field(
        default="",
        description="The key that tasks on loopback share, made if it is not there. Empty: "
        "ropewalk/loopback.key in the user's state folder (~/.local/state), else in a folder of "
        "this user in /tmp.",
    )
    token_file: str = Field(
        default="",
        description="This task's token, which says who it is (`ropewalk token new`). Read again "
        "when it changes. Empty: none.",
    )
    token_keys: str = Field(
        default="",
        description="Public keys, in PEM, that the tokens of others are signed with. Read again "
        "when they change. Empty: none.",
    )
    health_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra plaintext port for the gRPC health service alone, for probes; 0: none.",
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra plaintext port where Prometheus reads this task's metrics, /metrics; 0: "
        "none, since anybody who reaches it can read them.",
    )
    tcp_sessions: bool = Field(
        default=True,
        description="Whether sessions with a ps, and links between synchronous workers, are opened "
        "as plain connections to the peer's port. Otherwise, and where only HTTP/2 passes, they go "
        "through gRPC, which is several times slower.",
    )
    shared_memory: bool = Field(
        default=True,
        description="Whether a worker and a ps of one machine and user hand values over in shared "
        "memory. Several times faster; where it is not possible the stream is used by itself.",
    )
    socket_dir: str = Field(
        default="",
        description="Folder for a Unix socket beside the one without a file, so that containers "
        "which share this folder and no network share memory too. Empty: none.",
    )

    # -- gradients -----------------------------------------------------------------------------

    nonfinite_gradients: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="What happens to a step whose gradients hold NaN or infinity. One such push "
        "ruins the model for every worker, so it is refused, counted and reported.",
    )
    nonfinite_limit: int = Field(
        default=10,
        ge=1,
        description="A program whose steps are refused this many times in a row has diverged: "
        "it ends with NonFiniteGradientError.",
    )

    # -- checkpoints ---------------------------------------------------------------------------

    model_dir: str = Field(
        default="",
        description="Where checkpoints go: a path or any fsspec URL, the same for the chief and "
        "every ps. Empty: none are written.",
    )
    save_every_steps: int = Field(
        default=0, ge=0, description="Global steps between checkpoints; 0: by time alone."
    )
    save_every_s: float = Field(
        default=600.0,
        ge=0,
        description="Seconds between checkpoints; 0: by steps alone. Ten minutes, as Estimator.",
    )
    keep_checkpoints: int = Field(
        default=5,
        ge=1,
        description="Complete checkpoints kept; the oldest go first. Five, as Estimator.",
    )
    save_whole_every: int = Field(
        default=1,
        ge=1,
        description="Of so many checkpoints one is whole; those after it are deltas: of growing "
        "tables, and of large variables that get sparse gradients, they have only the rows that "
        "changed since, and cannot be read without it. 1: all are whole, so that each can be "
        "copied and removed by itself. The last one of a job always is.",
    )

    cut_hold_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Longest time for which pushes wait so that a checkpoint or a snapshot has one "
        "moment of all ps; then it is tried again. They wait for a round trip and for the steps "
        "under way: much longer only if a worker stands still at that moment.",
    )

    # -- a standalone cluster ------------------------------------------------------------------

    standalone: bool = Field(
        default=False,
        description="Whether this daemon is a part of a standalone cluster: it waits for the jobs "
        "that drivers submit (`ropewalk submit`), and runs their tasks as processes of their own.",
    )
    max_jobs: int = Field(
        default=8,
        ge=1,
        description="Most jobs of a standalone cluster that run at once; others wait their turn.",
    )
    max_job_workers: int = Field(
        default=0,
        ge=0,
        description="Most workers of one job of a standalone cluster; 0: as many as it has nodes.",
    )
    max_node_tasks: int = Field(
        default=8, ge=1, description="Most tasks at once on one node of a standalone cluster."
    )

    # -- kernels and output --------------------------------------------------------------------

    kernel_cache: str = Field(
        default="",
        description="Folder where compiled kernels are kept, e.g. one that `ropewalk warm-kernels` "
        "filled when an image was built. Must belong to this user. Empty: NUMBA_CACHE_DIR, then "
        "ropewalk in the user's cache folder, which all tasks of a machine share.",
    )
    rule_modules: str = Field(
        default="",
        description="Modules that a ps imports at start, separated by commas: those that register "
        "update rules of the program's own. Empty: none; a ps runs no code that it was not given.",
    )
    tensorboard: bool = Field(
        default=False,
        description="Whether the chief writes the job's numbers (steps per second, staleness, load "
        "of each ps, reported metrics), and the evaluator its results, to model_dir/tensorboard. "
        "Needs ropewalk[tensorboard] there; `ropewalk tensorboard` shows them.",
    )
    log_format: Literal["time", "bare"] = Field(
        default="time",
        description="Whether log lines carry time and level of their own, or a launcher adds them.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least important lines shown."
    )

    @property
    def chief_lost_s(self) -> float:
        """Longest time that a worker goes on without an answer of its chief. Unit: seconds."""
        limit_s = self.lease_s + self.reconnect_timeout_s
        return max(limit_s, self.orphan_timeout_s) if self.chief_returns else limit_s

    @property
    def shares_move(self) -> bool:
        """Whether another ps may come to lead what a ps serves: the chief says which one does."""
        return self.ps_replicas > 1 or self.ps_shares > 0

    def environment(self) -> dict[str, str]:
        """Write these settings as ``ROPEWALK_*`` variables, for a child process.

        Defaults are left out.
        """
        values = self.model_dump(exclude_defaults=True)
        return {f"{_PREFIX}{name.upper()}": str(value) for name, value in values.items()}


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Load settings from ``flags`` (None values count as absent), the environment, the defaults.

    Raises:
        ConfigurationError: A value is not valid; the message names the flag or variable.
    """
    explicit = {name: value for name, value in (flags or {}).items() if value is not None}
    # By hand: pydantic-settings brings dotenv, TOML and a command line, 0.1 s in every task that
    # starts.
    environment = {name.upper(): value for name, value in os.environ.items()}
    variables = {name: f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    inherited = {name: environment[key] for name, key in variables.items() if key in environment}
    try:
        return Settings(**(inherited | explicit))
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            name = str(problem["loc"][0])
            source = f"--{name.replace('_', '-')}" if name in explicit else variables[name]
            problems.append(f"{source}={problem['input']!r}: {problem['msg']}")
        raise ConfigurationError("; ".join(problems)) from error


def quiet_grpc() -> None:
    """Keep gRPC's C core from printing failures that we report in words. Before grpc is loaded."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def read_environment(name: str, default: str = "") -> str:
    """Read a variable of the environment that is not a setting, e.g. ``JOB_COMPLETION_INDEX``."""
    return os.environ.get(name, default)


def environment_variables() -> dict[str, str]:
    """Copy the environment as it is now, for what reads several variables of a launcher at once."""
    return dict(os.environ)


def set_environment(name: str, value: str) -> None:
    """Set a variable of this process that its libraries read, e.g. ``CUDA_VISIBLE_DEVICES``."""
    os.environ[name] = value


def replace_environment(variables: Mapping[str, str]) -> None:
    """Give this process another environment, as if it had been started with it."""
    os.environ.clear()
    os.environ.update(variables)


def take_environment(name: str) -> str:
    """Take a variable that is meant for this process alone: removed, so that no child inherits
    it.
    """
    return os.environ.pop(name, "")


def child_environment(**changes: str) -> dict[str, str]:
    """Make the environment for a process we start: ours, with ``changes``.

    No variable of Ropewalk is inherited, but the address of a cluster to send programs to: settings
    have been read, flags may have overruled them, and what a launcher said of this process is not
    true of another one. ``changes`` has what the child should use.
    """
    inherited = {name: value for name, value in os.environ.items() if not _is_of_process(name)}
    return {"GLIBC_TUNABLES": GLIBC_TUNABLES, **inherited, **changes}


def launcher_variables() -> dict[str, str]:
    """List the variables that a launcher has set for this process beside its settings."""
    read = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    ours = {name: value for name, value in os.environ.items() if _is_of_process(name)}
    return {name: value for name, value in ours.items() if name.upper() not in read}


def _is_of_process(name: str) -> bool:
    return name.upper().startswith(_PREFIX) and name != CLUSTER_VARIABLE
