"""The commands that have the name of a role: ``chief``, ``worker``, ``ps`` and ``evaluator``."""

from typing import Any

import click

from ...cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from ..options.program import SCRIPT_LAST, program_arguments
from ..options.settings import settings_options, task_options
from .tasks import print_tf_config_option, run_as_task

_TEXTS = {
    "ps": "Serve variables until the job is over.",
    "chief": "Run SCRIPT as the chief: lead the job, train, save checkpoints. Without one, be the "
    "door of a standalone cluster, to which `ropewalk submit` sends jobs.",
    "worker": "Run SCRIPT as a worker; without one, run what the coordinator schedules.",
    "evaluator": "Run SCRIPT as the evaluator: evaluate each new checkpoint.",
}
_NOT_OF_PS = dict.fromkeys(
    (
        "join_timeout_s", "wait_for_workers", "nonfinite_gradients", "nonfinite_limit",
        "save_every_steps", "save_every_s", "save_whole_every", "keep_checkpoints", "tensorboard",
    ),
    "a ps runs no program, waits for no task, and is told when to write",
)  # fmt: skip


def _role_command(role: str) -> click.Command:
    def command(
        print_tf_config: bool,
        script: str | None = None,
        arguments: tuple[str, ...] = (),
        module: bool = False,
        **flags: Any,
    ) -> None:
        run_as_task(
            script, arguments, module=module, print_tf_config=print_tf_config, role=role, **flags
        )

    command.__doc__ = _TEXTS[role]
    useless = _NOT_OF_PS if role == PS else None
    decorated: Any = settings_options(useless=useless)(task_options(command))
    decorated = print_tf_config_option(decorated)
    if role != PS:
        decorated = program_arguments(required=role == EVALUATOR)(decorated)
    of_role: click.Command = click.command(role, context_settings=SCRIPT_LAST)(decorated)
    return of_role


chief_command = _role_command(CHIEF)
worker_command = _role_command(WORKER)
ps_command = _role_command(PS)
evaluator_command = _role_command(EVALUATOR)
