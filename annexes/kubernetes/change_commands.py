"""The commands of ``ropewalk k8s`` that render, make, change and delete jobs."""

import json
from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...core.errors import ConfigurationError
from ...launch.options.settings import refuse_said
from ...launch.screen.echo import echo
from ..jobfile.option import JOB_FILE, job_option
from .command import Found, connect_api, json_option, of_job, where_options
from .names import Form

if TYPE_CHECKING:
    from ..jobfile.model import JobFile
    from .code import ShippedCode


def _code_options(command: Any) -> Any:
    """Add ``--code`` and what it needs to know."""
    command = click.option(
        "--image-has-requirements",
        is_flag=True,
        help="The image has what requirements.txt or pyproject.toml of --code declare.",
    )(command)
    return click.option(
        "--code",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="The folder with the program, which is sent in ConfigMaps instead of being in the "
        "image; without what .gitignore and .ropewalkignore leave out.",
    )(command)


_form_option = click.option(
    "--as",
    "form",
    type=click.Choice([each.value for each in Form]),
    default=Form.OBJECTS.value,
    show_default=True,
    help="Plain objects, or one object of JobSet's controller or of Kubeflow Trainer.",
)


def _code(
    folder: Path | None, job: "JobFile", job_file: str, *, image_has_requirements: bool
) -> "ShippedCode | None":
    if folder is None:
        return None
    from .code import pack_code

    return pack_code(
        folder, job, job_file=Path(job_file), image_has_requirements=image_has_requirements
    )


@click.command("render")
@job_option
@_form_option
@_code_options
@click.option("--json", "as_json", is_flag=True, help="A List in JSON instead of YAML.")
def render_command(
    job_file: str, form: str, code: Path | None, image_has_requirements: bool, as_json: bool
) -> None:
    """Print the objects of a job; nothing is sent."""
    from ..jobfile.reading import read_job
    from ..jobfile.yaml_output import dump_documents
    from .manifests import manifests
    from .status_objects import check_rendered

    job = read_job(job_file)
    check_rendered(job, Form(form))
    sent = _code(code, job, job_file, image_has_requirements=image_has_requirements)
    documents = manifests(job, Form(form), sent)
    if as_json:
        echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    else:
        echo(dump_documents(documents), nl=False)


@click.command("apply")
@job_option
@_form_option
@_code_options
@where_options
@click.option("--dry-run", is_flag=True, help="Let the API check everything and change nothing.")
@click.option("--force", is_flag=True, help="Take over fields that others have set.")
@click.option(
    "--replace",
    is_flag=True,
    help="Delete the job's tasks first: for a job that is over, or that runs another program.",
)
@json_option
def apply_command(
    job_file: str,
    form: str,
    code: Path | None,
    image_has_requirements: bool,
    context: str,
    namespace: str,
    dry_run: bool,
    force: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Make or change the objects of a job (server-side apply).

    Every object is tried first: unless the API accepts all of them, nothing is changed. What the
    job's pods name and the namespace lacks is said on stderr.
    """
    from ..jobfile.reading import read_job
    from .applying import KubernetesLauncher

    job = read_job(job_file)
    sent = _code(code, job, job_file, image_has_requirements=image_has_requirements)
    api = connect_api(context, namespace, job)
    if job_file != JOB_FILE:
        api.where = changed(api.where, job_file=job_file)
    launcher = KubernetesLauncher(
        api,
        form=Form(form),
        code=sent,
        force=force,
        replace=replace,
        say=lambda text: echo(text, err=True),
    )
    done = launcher.apply(job, dry_run=dry_run)
    if as_json:
        echo(json.dumps([asdict(each) for each in done]))
        return
    for each in done:
        echo(f"{each.kind} {each.name} {each.what}")
    if not dry_run:
        echo(f"see it start: {api.where.command('status', job.name, '--watch')}")


@click.command("scale")
@click.argument("workers", type=click.IntRange(0), required=False)
@click.option(
    "--ps", type=click.IntRange(1), help="Have so many ps instead, in a job with ps_shares."
)
@of_job
@click.option("--timeout-s", default=300.0, show_default=True, help="How long to wait.")
@click.option("--dry-run", is_flag=True, help="Say who would leave or come, and change nothing.")
def scale_command(
    find: Found,
    workers: int | None,
    ps: int | None,
    timeout_s: float,
    dry_run: bool,
) -> None:
    """Have WORKERS workers from now on; those with the highest indices drain and leave.

    With --ps the ps hand over what they have before they leave, and training goes on.
    """
    from .scaling import read_ps_scale, read_scale, scale

    if (workers is None) is (ps is None):
        raise ConfigurationError("scale changes one number: give WORKERS, or --ps N")
    api, name = find()
    plan = read_ps_scale(api, name, ps) if ps is not None else read_scale(api, name, workers or 0)
    if dry_run:
        who = [f"{plan.role}:{index} would drain and leave" for index in plan.leaving]
        who += [f"{plan.role}:{index} would come" for index in plan.coming]
        echo("\n".join(who) or f"{name} has {plan.now} {plan.title} already")
        return
    scale(api, name, plan, echo, timeout_s=timeout_s)


@click.command("delete")
@of_job
@click.option("--checkpoints", is_flag=True, help="The claim with the checkpoints, too.")
@click.option(
    "--namespace-too",
    is_flag=True,
    help="Then the namespace and all that is in it, checkpoints too; refused where other pods run "
    "or others have claims.",
)
@click.option(
    "--timeout-s",
    default=180.0,
    show_default=True,
    help="With --namespace-too: how long pods may take to leave.",
)
@json_option
def delete_command(
    find: Found,
    checkpoints: bool,
    namespace_too: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Delete the objects of a job; its tasks save and leave. Checkpoints stay."""
    from .removal import delete_all, delete_with_namespace

    if not namespace_too:
        refuse_said(["timeout_s"], "nothing is waited for without --namespace-too")
    api, name = find()
    if namespace_too:
        done = delete_with_namespace(api, name, timeout_s)
    else:
        done = delete_all(api, name, checkpoints=checkpoints)
    if not done:
        api.check_namespace()
    if as_json:
        echo(json.dumps([asdict(each) for each in done]))
        return
    for each in done:
        kept = " (--checkpoints deletes it)" if each.what == "kept" else ""
        echo(f"{each.kind} {each.name} {each.what}{kept}")
    if not done:
        echo(f"there is nothing of {name} in namespace {api.namespace}")
