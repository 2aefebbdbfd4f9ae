"""Settings of a task: one frozen value, read from flags, then ``ROPEWALK_*``, then these defaults.

This module and the TF_CONFIG resolver are the only readers of the environment.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo

from . import annexes
from .errors import ConfigurationError
from .setting_groups import (
    CheckpointSettings,
    Concern,
    Decided,
    EndSettings,
    GradientSettings,
    IdentitySettings,
    JoinSettings,
    KernelSettings,
    LivenessSettings,
    LogSettings,
    MessageSettings,
    PathSettings,
    PortSettings,
    PsSettings,
    RestartSettings,
    SettingsGroup,
)

_Mark = TypeVar("_Mark")

# glibc copies past the caches only from three quarters of the last-level cache on, which on large
# servers is more than any step. Copies of several MiB are a third faster past them. Read when a
# process starts.
GLIBC_TUNABLES = "glibc.cpu.x86_non_temporal_threshold=0x400000"
_PREFIX = "ROPEWALK_"
CLUSTER_VARIABLE = "ROPEWALK_CLUSTER"
"""Variable with the address of the standalone cluster to which programs are sent."""


ALL_WORKERS = -1
"""``wait_for_workers``: all that the cluster lists, for a minute at most."""


_KERNEL: tuple[type[SettingsGroup], ...] = (
    JoinSettings,
    LivenessSettings,
    RestartSettings,
    EndSettings,
    MessageSettings,
    PsSettings,
    IdentitySettings,
    PortSettings,
    PathSettings,
    GradientSettings,
    CheckpointSettings,
    KernelSettings,
    LogSettings,
)


if TYPE_CHECKING:

    class _Declared(
        JoinSettings,
        LivenessSettings,
        RestartSettings,
        EndSettings,
        MessageSettings,
        PsSettings,
        IdentitySettings,
        PortSettings,
        PathSettings,
        GradientSettings,
        CheckpointSettings,
        KernelSettings,
        LogSettings,
        BaseModel,
    ): ...

else:
    _Declared = BaseModel


class _Composed(_Declared):
    """Answers that a task takes from several settings at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a NUL can be in no path, name or address")
        return value

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

    def asks_for(self, feature: str) -> bool:
        """Return whether a switch of an annex is on; without the annex there is none."""
        return bool(getattr(self, feature, False))


def _groups() -> list[type[SettingsGroup]]:
    return [*_KERNEL, *(group for module in annexes.at("settings") for group in module.GROUPS)]


def _fields(groups: Iterable[type[SettingsGroup]]) -> dict[str, tuple[Any, Any]]:
    """Collect the annotations and defaults of groups in the order in which they are listed."""
    fields = dict[str, tuple[Any, Any]]()
    for group in groups:
        own = {name: (kind, getattr(group, name)) for name, kind in group.fields().items()}
        items = list(fields.items())
        at = list(fields).index(group.after) + 1 if group.after in fields else len(items)
        fields = dict([*items[:at], *own.items(), *items[at:]])
    return fields


def _concerns_of(groups: Iterable[type[SettingsGroup]]) -> dict[str, frozenset[Concern]]:
    return {
        name: frozenset(_marks(Settings.model_fields[name], Concern)) or frozenset(group.concerns)
        for group in groups
        for name in group.fields()
    }


def _marks(field: FieldInfo, kind: type[_Mark]) -> list[_Mark]:
    return [mark for mark in field.metadata if isinstance(mark, kind)]


if TYPE_CHECKING:

    class Settings(_Composed):
        """All settings of a task; those of annexes are read by ``SettingsGroup.of``."""

        def __init__(self, **values: Any) -> None: ...

else:
    Settings = create_model(
        "Settings",
        __base__=_Composed,
        __module__=__name__,
        __doc__="All settings of a task.",
        **_fields(_groups()),
    )

CONCERNS: Mapping[str, frozenset[Concern]] = _concerns_of(_groups())
"""Concerns of each setting, by its name."""
DECIDED: Mapping[str, Decided] = {
    name: mark for name, field in Settings.model_fields.items() for mark in _marks(field, Decided)
}
"""Settings that who starts tasks as processes decides, whatever it has for itself."""


def settings_of(concern: Concern) -> list[str]:
    """List the names of the settings that concern something, in their order."""
    return [name for name in Settings.model_fields if concern in CONCERNS[name]]


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
