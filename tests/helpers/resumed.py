"""A job in this process that begins with a checkpoint."""

from pathlib import Path

import windlass as wl
from windlass.client.ps.parameter_session import ParameterSession
from windlass.core.settings import Settings
from windlass.core.task import Incarnation, TaskId
from windlass.distribute.local_ps import LocalPs
from windlass.distribute.runtime import ClusterRuntime


def resumed(model_dir: Path) -> wl.distribute.ParameterServerStrategy:
    """A strategy of a job that begins with the newest checkpoint there."""
    settings = Settings(model_dir=str(model_dir))
    who = Incarnation(TaskId("chief", 0), 1)
    session = ParameterSession([LocalPs(TaskId("ps", 0), who, settings)], who, settings)
    task = wl.distribute.ParameterServerStrategy().extended.runtime.task
    [path] = map(str, model_dir.iterdir())  # a ps of this process is given the path
    runtime = ClusterRuntime(task, settings, session, restore_from=path)
    return wl.distribute.ParameterServerStrategy(runtime=runtime)
