"""A job in this process that begins with a checkpoint."""

from pathlib import Path

import ropewalk as rw
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.runtime import ClusterRuntime


def resumed(model_dir: Path) -> rw.distribute.ParameterServerStrategy:
    """A strategy of a job that begins with the newest checkpoint there."""
    settings = Settings(model_dir=str(model_dir))
    who = Incarnation(TaskId("chief", 0), 1)
    session = ParameterSession([LocalPs(TaskId("ps", 0), who, settings)], who, settings)
    task = rw.distribute.ParameterServerStrategy().extended.runtime.task
    [path] = map(str, model_dir.iterdir())  # a ps of this process is given the path
    runtime = ClusterRuntime(task, settings, session, restore_from=path)
    return rw.distribute.ParameterServerStrategy(runtime=runtime)
