"""Setting of event files."""

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class TensorBoardSettings(SettingsGroup, concerns=(Concern.PROGRAM,), after="rule_modules"):
    """Setting of the tasks that write event files."""

    tensorboard: bool = Field(
        default=False,
        description="Whether the chief writes the job's numbers (steps per second, staleness, load "
        "of each ps, reported metrics), and the evaluator its results, to model_dir/tensorboard. "
        "Needs ropewalk[tensorboard] there; `ropewalk tensorboard` shows them.",
    )


GROUPS = (TensorBoardSettings,)
