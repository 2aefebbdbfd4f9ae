"""A job as a run of MLflow. It is no active run: the chief's program may have one of its own."""

import re
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from ...core.settings import environment_variables
from ...core.task import Phase
from .runs import JobOfRun

_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)
_STATUS = {Phase.DONE: "FINISHED", Phase.STOPPED: "KILLED", Phase.FAILED: "FAILED"}


class MlflowRun:
    """A run of MLflow. See :class:`~.runs.TrackedRun`.

    Args:
        client: Client of the tracking server or store.
        key: Identifier of the run.
    """

    def __init__(self, client: MlflowClient, key: str) -> None:
        self._client = client
        self.key = key
        self.place = f"run {key} of {client.tracking_uri}"

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        """Report numbers, in one call."""
        when = int(at * 1000)
        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, when, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self.key, metrics=metrics)

    def end(self, phase: Phase) -> None:
        """End the run; one of a job that is not over stays as it is."""
        if status := _STATUS.get(phase):
            self._client.set_terminated(self.key, status)


def open_run(job: JobOfRun, key: str) -> MlflowRun:
    """Begin a run, or go on with one.

    Args:
        job: The job.
        key: Identifier of the run to go on with; empty: a new one, or that of ``MLFLOW_RUN_ID``.
    """
    client = MlflowClient()
    if not job.is_evaluation:
        key = key or environment_variables().get("MLFLOW_RUN_ID", "")
    if not key or not _goes_on(client, key):
        key = _new_run(client, job)
    return MlflowRun(client, key)


def _goes_on(client: MlflowClient, key: str) -> bool:
    """Set a run to running; False: it was deleted."""
    try:
        client.update_run(key, status="RUNNING")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def _new_run(client: MlflowClient, job: JobOfRun) -> str:
    run = client.create_run(_experiment(client), tags={"ropewalk.job": job.job}, run_name=job.name)
    params = [Param(name, value) for name, value in job.about.items()]
    client.log_batch(run.info.run_id, params=params)
    return str(run.info.run_id)


def _experiment(client: MlflowClient) -> str:
    """Find the experiment that MLflow's own variables name; the one called ropewalk else."""
    if number := environment_variables().get("MLFLOW_EXPERIMENT_ID"):
        return number
    name = environment_variables().get("MLFLOW_EXPERIMENT_NAME", "ropewalk")
    there = client.get_experiment_by_name(name)
    return str(there.experiment_id if there else client.create_experiment(name))
