"""Command-line options: settings, the process's task, the program; and clients by settings."""

import socket
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ..cluster.resolvers.launchers import launcher_resolver
from ..cluster.resolvers.resolved import ResolvedTask, resolve
from ..cluster.resolvers.resolver import SimpleClusterResolver
from ..cluster.resolvers.template import (
    INDEX_VARIABLES,
    TemplateClusterResolver,
    find_index,
    parse_replicas,
)
from ..cluster.resolvers.tf_config import TFConfigClusterResolver
from ..cluster.spec import PS, ClusterSpec
from ..core.errors import ConfigurationError
from ..core.outside_text import read_json
from ..core.setting_groups import Concern
from ..core.settings import Settings, load_settings, read_environment, settings_of
from ..core.task import MAX_TASK_INDEX

if TYPE_CHECKING:
    from ..client.chief.calls import ChiefClient
    from ..cluster.access import Principal

# -- Command-line options: a flag for every setting, and flags for the process's task ----------


_Command = TypeVar("_Command", bound=Callable[..., Any])


def settings_options(
    *,
    defaults: Mapping[str, str] | None = None,
    hidden: Container[str] = (),
    useless: Mapping[str, str] | None = None,
    without: Container[str] = (),
) -> Callable[[_Command], _Command]:
    """Add a flag for every setting.

    Args:
        defaults: Defaults that the help shows of settings whose default is another for this
            command.
        hidden: Settings whose flags are taken and not listed.
        useless: Settings that have no effect here, and why: their flags are refused. Variables
            are not, which all tasks of a machine may share.
        without: Settings that have no flag here.
    """

    def add(command: _Command) -> _Command:
        for name, field in reversed(Settings.model_fields.items()):
            if name in without:
                continue
            flag = f"--{name.replace('_', '-')}"
            default = (defaults or {}).get(name) or _shown(field.default)
            text = f"{field.description} [default: {default}]"
            why = (useless or {}).get(name, "")
            is_switch = field.annotation is bool
            option = click.option(
                f"{flag}/--no-{flag[2:]}" if is_switch else flag,
                name,
                default=None,
                metavar=None if is_switch else "VALUE",
                help=text,
                hidden=bool(why) or name in hidden,
                callback=_refusal(why) if why else None,
            )
            command = option(command)
        return command

    return add


def _refusal(why: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(_: click.Context, parameter: click.Parameter, value: object) -> None:
        if value is not None and parameter.name is not None:
            raise _has_no_effect(parameter.name, why)

    return refuse


def _has_no_effect(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"--{name.replace('_', '-')} has no effect here: {why}")


def caller_options(command: _Command) -> _Command:
    """Add the flags that say how a caller shows who it is; those of tasks are refused."""
    why = "it is a setting of tasks, and this command only asks them"
    calls = settings_of(Concern.CALL)
    of_tasks = Settings.model_fields.keys() - {*settings_of(Concern.CALLER), *calls}
    return settings_options(hidden=calls, useless=dict.fromkeys(of_tasks, why))(command)


def is_said(name: str) -> bool:
    """Return whether the command line itself says a parameter."""
    context = click.get_current_context()
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_said(names: Iterable[str], why: str) -> None:
    """Refuse flags that would have no effect.

    Raises:
        ConfigurationError: The command line has one of them.
    """
    for name in filter(is_said, names):
        raise _has_no_effect(name, why)


def _shown(default: object) -> str:
    if default == "":
        return "empty"
    return f"{default:g}" if isinstance(default, float) else str(default)


def task_options(command: _Command) -> _Command:
    """Add the flags that name this process's task and cluster instead of TF_CONFIG."""
    variables = ", ".join(INDEX_VARIABLES)
    options = [
        click.option(
            "--index",
            type=click.IntRange(0, MAX_TASK_INDEX),
            help="Index of this task in its role. Otherwise taken from "
            f"{variables}, or from the number at the end of the host name.",
        ),
        click.option(
            "--cluster",
            metavar="JSON",
            help="""Addresses by role, e.g. '{"ps": ["a:2222"], "worker": ["b:2222"]}'.""",
        ),
        click.option(
            "--replicas",
            metavar="ROLE=N,…",
            help="Tasks per role, e.g. chief=1,ps=2,worker=3. Without --host-template for the "
            "tasks of srun or SageMaker, which are all workers otherwise.",
        ),
        click.option("--host-template", metavar="PATTERN", help="Address with {role} and {index}."),
        click.option(
            "--port",
            type=click.IntRange(1, 65535),
            help="Port of the first task of a host, where the launcher names hosts alone: Slurm "
            "(8888), SageMaker (2223), Volcano (2222).",
        ),
        click.option(
            "--chief",
            "chief_address",
            metavar="HOST:PORT",
            help="Address of the chief, if the cluster does not name it.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class TaskFlags:
    """The flags of :func:`task_options`, and the role."""

    role: str | None = None
    index: int | None = None
    cluster: str | None = None
    replicas: str | None = None
    host_template: str | None = None
    port: int | None = None
    chief_address: str | None = None


def take_settings(flags: dict[str, Any]) -> Settings:
    """Take the settings from a command's keyword arguments, from which they are removed."""
    return load_settings(
        {name: flags.pop(name) for name in list(flags) if name in Settings.model_fields}
    )


def resolve_task(flags: TaskFlags) -> ResolvedTask:
    """Resolve this process's task: from the flags, then from TF_CONFIG, then from the launcher.

    Raises:
        ConfigurationError: The flags contradict each other, or something is missing.
    """
    _check_together(flags)
    if flags.host_template:
        return _from_template(flags)
    if flags.cluster:
        return _from_json(flags)
    if launched := _from_launcher(flags):
        return launched
    if flags.replicas:
        return _from_template(flags)
    # TFJob tells the chief of a dynamic job nothing: --cluster or --replicas must name the others.
    return resolve(
        TFConfigClusterResolver(task_type=flags.role, task_id=flags.index),
        overrides=_overrides(flags),
        chief_address=flags.chief_address or "",
    )


def _check_together(flags: TaskFlags) -> None:
    """Check that the flags name the cluster in one way.

    Raises:
        ConfigurationError: Two of them do.
    """
    if flags.cluster and (flags.host_template or flags.replicas):
        other = "--host-template" if flags.host_template else "--replicas"
        raise ConfigurationError(
            f"--cluster and {other} each say what the cluster is; leave one of them out"
        )
    if flags.port is not None and (flags.cluster or flags.host_template):
        raise ConfigurationError(
            "--port is for hosts that a launcher names without one; in --cluster and "
            "--host-template an address has its port",
            port=flags.port,
        )


def _overrides(flags: TaskFlags, index_from: str = "") -> dict[str, str]:
    sources: dict[str, str] = {}
    if flags.role is not None:
        sources["task.type"] = "the command"
    if index_from or flags.index is not None:
        sources["task.index"] = index_from or "--index"
    if flags.chief_address:
        sources["chief"] = "--chief"
    return sources


def _identity(flags: TaskFlags) -> tuple[str, int, str]:
    from_config = TFConfigClusterResolver().snapshot()
    role = flags.role or from_config.task_type
    if role is None:
        raise ConfigurationError(
            "which task is this? Give --role (or use ropewalk ps, worker, chief …)"
        )
    named = {name: read_environment(name) for name in INDEX_VARIABLES}
    index_and_source = find_index(flags.index, named, socket.gethostname())
    if flags.index is None and from_config.task_id is not None:
        index_and_source = (from_config.task_id, "TF_CONFIG")
    if index_and_source is None:
        raise ConfigurationError(
            f"which {role} is this? Give --index, or set one of {', '.join(INDEX_VARIABLES)}, or "
            "use a host name that ends in a number",
            role=role,
        )
    return role, index_and_source[0], index_and_source[1]


def _from_launcher(flags: TaskFlags) -> ResolvedTask | None:
    """Find the task that Slurm, SageMaker or Volcano gave this process; None if none of them
    did.
    """
    replicas = parse_replicas(flags.replicas) if flags.replicas else None
    resolver = launcher_resolver(replicas=replicas, port=flags.port)
    if resolver is None:
        if flags.port is not None:
            raise ConfigurationError(
                "--port is for tasks that Slurm, SageMaker or Volcano starts; elsewhere an address "
                "has its port: in TF_CONFIG, --cluster or --host-template",
                port=flags.port,
            )
        return None
    for flag, stated, resolved in (
        ("the role", flags.role, resolver.task_type),
        ("--index", flags.index, resolver.task_id),
    ):
        if stated is not None and resolved is not None and stated != resolved:
            raise ConfigurationError(
                f"{flag} is {stated}, but {resolver.source} says that this process is "
                f"{resolver.task_type}:{resolver.task_id}. Use `ropewalk run` without --role and "
                "--index there, or say what the cluster is by TF_CONFIG or --cluster"
            )
    overrides = _overrides(flags)
    if resolver.task_type is None or resolver.task_id is None:
        resolver.task_type, resolver.task_id = flags.role, flags.index
    else:  # the flags repeat what the launcher says
        overrides = {"chief": "--chief"} if flags.chief_address else {}
    return resolve(
        resolver,
        overrides=overrides,
        chief_address=flags.chief_address or "",
    )


def _from_template(flags: TaskFlags) -> ResolvedTask:
    if not (flags.host_template and flags.replicas):
        raise ConfigurationError(
            "--replicas and --host-template belong together; give both. --replicas alone is for "
            "tasks that srun or SageMaker starts"
        )
    role, index, index_from = _identity(flags)
    resolver = TemplateClusterResolver(
        role, index, parse_replicas(flags.replicas), flags.host_template
    )
    return resolve(
        resolver,
        source="flags",
        overrides={"cluster": "--replicas and --host-template"} | _overrides(flags, index_from),
        chief_address=flags.chief_address or "",
    )


def _from_json(flags: TaskFlags) -> ResolvedTask:
    try:
        spec = ClusterSpec(read_json(flags.cluster or ""))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"--cluster {flags.cluster!r:.200}: {error}") from error
    role, index, index_from = _identity(flags)
    return resolve(
        SimpleClusterResolver(spec, task_type=role, task_id=index),
        source="flags",
        overrides={"cluster": "--cluster"} | _overrides(flags, index_from),
        chief_address=flags.chief_address or "",
    )


def explain(task: ResolvedTask) -> list[tuple[str, str, str]]:
    """List (name, value, source) of everything resolved, for ``--print-tf-config``."""
    sources: Mapping[str, str] = task.sources
    task_from = sources.get("task", sources.get("cluster", ""))
    rows = [
        ("task.type", task.task.type, sources.get("task.type", task_from)),
        ("task.index", str(task.task.index), sources.get("task.index", task_from)),
        ("address", task.address or "none: it serves nothing", sources.get("cluster", "")),
        ("chief", f"{task.chief.short} {task.chief_address}".strip(), sources.get("chief", "")),
        *[
            (str(other), task.address_of(other), sources.get("cluster", ""))
            for other in task.spec.tasks()
        ],
    ]
    if task.evaluator:
        rows.append(
            ("evaluator", f"{task.evaluator} (not part of training)", sources.get("cluster", ""))
        )
    if not task.spec and task.task.type != PS:
        rows.append(("cluster", "this process alone", sources.get("cluster", "")))
    return rows


# -- Command-line arguments that name the user's program: ``[-m] SCRIPT [ARGUMENTS]…`` ---------

# What follows SCRIPT is the script's, as with `python SCRIPT …`.
SCRIPT_LAST = {"allow_interspersed_args": False}


def _of_script(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    value: tuple[str, ...],
) -> tuple[str, ...]:
    """Check the script's arguments; a ``--`` between it and them is allowed."""
    return value[1:] if value[:1] == ("--",) else value


def program_arguments(*, required: bool) -> Callable[[Any], Any]:
    """Add ``[-m] SCRIPT [ARGUMENTS]…``."""

    def add(command: Any) -> Any:
        command = click.argument(
            "arguments", nargs=-1, type=click.UNPROCESSED, callback=_of_script
        )(command)
        command = click.argument("script", required=required)(command)
        return click.option(
            "-m", "module", is_flag=True,
            help="SCRIPT is the name of a module or package, as in `python -m`.",
        )(command)  # fmt: skip

    return add


# -- Clients of a chief, as whoever drives jobs from a terminal --------------------------------
# A command that is only asked what may be given to it loads no client.


def chief_client(address: str, settings: Settings) -> "closing[ChiefClient]":
    """Open a client of the chief of a job, until the block ends."""
    from ..client.chief.calls import ChiefClient

    return closing(ChiefClient(address, settings, driver(settings)))


def driver(settings: Settings) -> "Principal":
    """Make the principal of a driver."""
    from ..cluster.access import DRIVER, Principal

    return Principal(DRIVER, settings.job_id)
