"""Settings of the kernel in groups, and how a group says which commands its settings concern.

An annex declares groups of its own in a module ``settings``, as ``GROUPS``. ``core/settings.py``
composes them all to the one class that tasks read.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, Field


class Concern(Enum):
    """Commands that a setting concerns beside those of tasks, or tasks that alone have it."""

    PROGRAM = auto()  # tasks that run the program: a ps has no use for it
    CALLER = auto()  # commands that only ask tasks: how they show who they are
    CALL = auto()  # they take it as well, and do not list it
    DRIVER = auto()  # a driver may set it for its job of a standing cluster
    PLACE = auto()  # one task of a machine: who starts several chooses it
    STANDALONE = auto()  # daemons of a standing cluster
    GATEWAY = auto()  # their chief alone
    TASK = auto()  # every task, and nothing else


@dataclass(frozen=True, slots=True)
class Decided:
    """A setting of tasks that are processes here, which who starts them decides.

    Attributes:
        value: Value that the tasks get.
        why: Why a user cannot say it for a job, or what to say instead.
        gateway_has_it: Whether the launcher of a standing cluster has it for itself.
    """

    value: object
    why: str
    gateway_has_it: bool = False


class SettingsGroup:
    """Settings of one concern. Every field says meaning, unit, and why that default.

    No model by itself: to build one for each group would cost every task ten milliseconds.

    A field whose annotation names concerns has those instead of its group's.

    Attributes:
        concerns: Concerns of the settings of the group.
        after: Setting that those of an annex follow where settings are listed.
    """

    concerns: ClassVar[tuple[Concern, ...]]
    after: ClassVar[str]

    def __init_subclass__(cls, concerns: tuple[Concern, ...] = (), after: str = "") -> None:
        cls.concerns, cls.after = concerns, after

    @classmethod
    def fields(cls) -> dict[str, Any]:
        """Return the annotations of its settings, in order."""
        return {name: kind for name, kind in cls.__annotations__.items() if hasattr(cls, name)}

    @classmethod
    def of(cls, settings: BaseModel) -> Self:
        """Return the settings of a task as those of this group, for the annex that declares it."""
        return cast("Self", settings)


_OWN_PORT = "tasks that share this machine cannot share a port"


class JoinSettings(SettingsGroup, concerns=(Concern.PROGRAM, Concern.DRIVER)):
    """Start of a job: who waits for whom."""

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


class LivenessSettings(SettingsGroup, concerns=(Concern.DRIVER,)):
    """Signs of life between tasks, and how long one goes on without them."""

    heartbeat_s: float = Field(
        default=0.5,
        gt=0,
        description="Time between heartbeats. Small, since they also carry the job's progress.",
    )
    lease_s: float = Field(
        default=10.0,
        gt=0,
        le=86_400,
        description="A task is lost this long after its last heartbeat, at the latest. Twenty "
        "missed ones: a garbage collection or a page-out is not a death.",
    )
    shortest_lease_s: float = Field(
        default=1.0,
        gt=0,
        le=86_400,
        description="A task of which something else says that it is gone (its connection is "
        "closed, a signal has stopped it, its process answers no ping) is lost after twice the "
        "longest of its last hundred times between heartbeats, but not before this time and not "
        "after `lease_s`. Two heartbeats. More where connections break for seconds and come back.",
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


class RestartSettings(SettingsGroup):
    """Tasks that whoever starts them starts again."""

    chief_returns: Annotated[
        bool,
        Decided(
            False, "--restarts says how often a lost chief is started again; the others wait for it"
        ),
    ] = Field(
        default=False,
        description="Whether a launcher starts a chief again that has ended. Then the other tasks "
        "of a job with ps go on without it for `orphan_timeout_s`, and a chief that alone is asked "
        "to stop saves and leaves the job to the next one. The same on all tasks. `ropewalk local "
        "--restarts` says so to all but its chief, which is only asked to stop with its job.",
    )
    stay_without_chief: Annotated[
        bool, Decided(False, "nothing starts a ps again once its job is over")
    ] = Field(
        default=False,
        description="Whether a ps that has had no chief yet stays when `orphan_timeout_s` is over, "
        "and says so once. For launchers that start it again whatever it ends with: the one that a "
        "StatefulSet of Kubernetes starts when the job is over would end and start for ever.",
    )


class EndSettings(SettingsGroup, concerns=(Concern.DRIVER,)):
    """End of a job, and its name."""

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
    job_id: Annotated[str, Concern.CALLER] = Field(
        default="",
        max_length=64,
        description="Name of the job: tasks of another one are refused. Empty: the chief makes "
        "one, and the others take it; then a job is told from another by who is at work.",
    )


class MessageSettings(SettingsGroup, concerns=(Concern.CALL,)):
    """Sizes of messages."""

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


class PsSettings(SettingsGroup):
    """Bounds of what a ps holds, and how many hold the same."""

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
    ps_replicas: Annotated[int, Concern.DRIVER] = Field(
        default=1,
        ge=1,
        le=2,
        description="How many ps have each variable, the one that serves it included; the same on "
        "the chief and all ps. With 2 a step is answered when two have it, and a ps that is lost "
        "takes nothing with it: the other goes on. Costs the memory and the work of as many ps.",
    )
    ps_shares: Annotated[int, Concern.DRIVER] = Field(
        default=0,
        ge=0,
        le=256,
        description="On how many shares the variables are placed, in a job whose ps may become "
        "more or fewer while it runs: at least as many as there are ps, which lead them in turn. A "
        "share is to a worker what a ps is, so a step takes one request for each. The same on the "
        "chief and all ps. 0: as many as there are ps, and without ps_replicas they stay there.",
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


class IdentitySettings(SettingsGroup, concerns=(Concern.CALLER,)):
    """Addresses, and how tasks show who they are."""

    host: Annotated[str, Concern.PLACE] = Field(
        default="",
        description="Address to bind; empty: loopback if this task's own address is loopback, "
        "otherwise every interface (which needs certificates, tokens or `insecure`).",
    )
    insecure: Annotated[bool, Concern.CALLER, Concern.PLACE] = Field(
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
    token_keys: Annotated[str, Concern.CALL] = Field(
        default="",
        description="Public keys, in PEM, that the tokens of others are signed with. Read again "
        "when they change. Empty: none.",
    )


class PortSettings(SettingsGroup):
    """Ports for probes and metrics."""

    health_port: Annotated[int, Decided(0, _OWN_PORT, gateway_has_it=True)] = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra plaintext port for the gRPC health service alone, for probes; 0: none.",
    )
    metrics_port: Annotated[int, Decided(0, _OWN_PORT)] = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra plaintext port where Prometheus reads this task's metrics, /metrics; 0: "
        "none, since anybody who reaches it can read them.",
    )


class PathSettings(SettingsGroup, concerns=(Concern.CALL,)):
    """Ways that arrays take."""

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
    socket_dir: Annotated[str, Concern.TASK] = Field(
        default="",
        description="Folder for a Unix socket beside the one without a file, so that containers "
        "which share this folder and no network share memory too. Empty: none.",
    )


class GradientSettings(SettingsGroup, concerns=(Concern.PROGRAM, Concern.DRIVER)):
    """Gradients that hold no numbers."""

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


class CheckpointSettings(SettingsGroup, concerns=(Concern.PROGRAM, Concern.DRIVER)):
    """Checkpoints: where, when, and how many."""

    model_dir: Annotated[str, Concern.TASK] = Field(
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
    cut_hold_s: Annotated[float, Concern.TASK] = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Longest time for which pushes wait so that a checkpoint or a snapshot has one "
        "moment of all ps; then it is tried again. They wait for a round trip and for the steps "
        "under way: much longer only if a worker stands still at that moment.",
    )


class KernelSettings(SettingsGroup):
    """Compiled kernels, and update rules of a program's own."""

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


class LogSettings(SettingsGroup):
    """Log lines of a task."""

    log_format: Annotated[
        Literal["time", "json", "bare"],
        Decided("bare", "lines are shown with the task that has written them", gateway_has_it=True),
    ] = Field(
        default="time",
        description="How log lines are written: `time`, with time and level; `json`, each as an "
        "object with the name of its event and its fields (docs/events.md); `bare`, for a launcher "
        "that adds what is missing.",
    )
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], Concern.DRIVER] = Field(
        default="INFO", description="Least important lines shown."
    )
