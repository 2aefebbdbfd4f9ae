"""Settings and variables of tasks that are processes of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...cluster.resolvers.tf_config import TF_CONFIG
from ...core.settings import Settings

ONE_THREAD: Mapping[str, str] = MappingProxyType(
    {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)
"""Tasks share the machine: a thread of BLAS per core and task would be too many."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A setting of tasks that are processes here, which who starts them decides.

    Attributes:
        value: Value that the tasks get.
        why: Why a user cannot say it for a job, or what to say instead.
    """

    value: object
    why: str


_OWN_PORT = "tasks that share this machine cannot share a port"
DECIDED: Mapping[str, Decided] = MappingProxyType(
    {
        "log_format": Decided("bare", "lines are shown with the task that has written them"),
        "health_port": Decided(0, _OWN_PORT),
        "metrics_port": Decided(0, _OWN_PORT),
        "stay_without_chief": Decided(False, "nothing starts a ps again once its job is over"),
        "supervise": Decided(False, "lost tasks are started again by the launcher itself"),
        "chief_returns": Decided(
            False, "--restarts says how often a lost chief is started again; the others wait for it"
        ),
    }
)
"""Settings that :func:`process_settings` decides, whatever a launcher or a daemon has for
itself.
"""


def process_settings(settings: Settings, **changes: object) -> Settings:
    """Derive the settings of tasks that run as processes from those of a launcher or a daemon.

    Args:
        settings: Settings of the launcher or daemon.
        changes: Settings that are different for these tasks.
    """
    of_process = {name: decided.value for name, decided in DECIDED.items()}
    return settings.model_copy(update={**of_process, **changes})


def process_environment(
    settings: Settings, tf_config: str, own: Mapping[str, str], user: Mapping[str, str]
) -> dict[str, str]:
    """Collect the variables of a task that is a process here.

    Args:
        settings: Settings of the task, as :func:`process_settings` makes them.
        tf_config: The task and its cluster.
        own: Variables of this task or job, which win over the settings.
        user: The user's, over which the settings win.
    """
    return {**user, **settings.environment(), **own, TF_CONFIG: tf_config}
