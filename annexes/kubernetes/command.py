"""``ropewalk k8s``: render, apply, status, list, logs, scale and delete a job on Kubernetes."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...launch.lazy_group import LazyGroup
from ...launch.options.settings import refuse_said
from ..jobfile.option import job_option

if TYPE_CHECKING:
    from ..jobfile.model import JobFile
    from .client.api import KubernetesApi

_LOOK, _CHANGE = "annexes.kubernetes.look_commands", "annexes.kubernetes.change_commands"
_COMMANDS = {
    "apply": f"{_CHANGE}:apply_command",
    "delete": f"{_CHANGE}:delete_command",
    "list": f"{_LOOK}:list_command",
    "logs": f"{_LOOK}:logs_command",
    "render": f"{_CHANGE}:render_command",
    "scale": f"{_CHANGE}:scale_command",
    "status": f"{_LOOK}:status_command",
}


@click.group("k8s", cls=LazyGroup, members=_COMMANDS)
def k8s_command() -> None:
    """Run a job file on Kubernetes: no operator, no definitions, plain objects.

    Needs the extra `k8s` (pip install 'ropewalk[k8s]'); `render` works without.
    """


json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
_context_option = click.option("--context", default="", help="Of the kubeconfig; else the current.")
_namespace_option = click.option(
    "--namespace", "-n", default="", help="Else the job file's, else the context's."
)
_name_option = click.option("--name", default="", help="Name of the job, instead of a job file.")


def where_options(command: Any) -> Any:
    """Add the options that say which cluster and namespace."""
    return _namespace_option(_context_option(command))


Found = Callable[[], "tuple[KubernetesApi, str]"]
"""Gives the API and the name of the job that a command is about."""


def of_job(command: Callable[..., None]) -> Any:
    """Give a command what finds its job, and the options that say which: --name, else the job
    file.
    """

    @job_option
    @_name_option
    @where_options
    @functools.wraps(command)
    def of_that_job(*, job_file: str, name: str, context: str, namespace: str, **more: Any) -> None:
        command(functools.partial(_find_job, job_file, name, context, namespace), **more)

    return of_that_job


def _find_job(
    job_file: str, name: str, context: str, namespace: str
) -> "tuple[KubernetesApi, str]":
    if name:
        refuse_said(["job_file"], "--name says which job")
        return connect_api(context, namespace, None), name
    from ..jobfile.reading import read_job

    job = read_job(job_file)
    return connect_api(context, namespace, job), job.name


def connect_api(context: str, namespace: str, job: "JobFile | None") -> "KubernetesApi":
    """Connect to the API of a context; the namespace is the flag's, else the job file's."""
    from .client.api import connect

    said = job.kubernetes.namespace if job is not None else ""
    return connect(context, namespace or said)
