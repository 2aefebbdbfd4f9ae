"""Setting of the trackers to which a job's numbers go."""

from typing import Literal

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class TrackerSettings(SettingsGroup, concerns=(Concern.PROGRAM,), after="tensorboard"):
    """Setting of the chief that reports to trackers."""

    track: Literal["", "mlflow", "wandb", "mlflow,wandb"] = Field(
        default="",
        description="Experiment trackers to which the chief reports the job's numbers (those of "
        "`tensorboard`): MLflow, Weights & Biases, or both. Where they are is said "
        "by their own variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, WANDB_MODE, "
        "WANDB_PROJECT. Needs ropewalk[mlflow] or ropewalk[wandb] on the chief.",
    )


GROUPS = (TrackerSettings,)
