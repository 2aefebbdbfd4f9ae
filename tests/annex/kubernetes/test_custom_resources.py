"""A job as a JobSet and as a TrainJob, beside the models of those who define them.

Kubeflow publishes models made from the definitions of its resources and of JobSet's. They ignore
what they do not know, and fill in what is missing: so an object is read and written again, and must
come out as it went in.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.jobfile import digits
from helpers.kubernetes.manifests import Manifest
from helpers.late import Late
from ropewalk.annexes.jobfile.parts import Gang
from ropewalk.annexes.kubernetes.manifests import manifests
from ropewalk.annexes.kubernetes.names import Form

models = Late("kubeflow_trainer_api.models")
MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
_DEFAULTS = {("protocol", "TCP")}


def differences(given: Any, made: Any, where: str = "") -> Iterator[str]:
    """What a model does not know of an object, or wants beside it."""
    if isinstance(given, dict) and isinstance(made, dict):
        for key in given.keys() | made.keys():
            if key not in made:
                yield f"{where}.{key} is unknown"
            elif key in given:
                yield from differences(given[key], made[key], f"{where}.{key}")
            elif (key, made[key]) not in _DEFAULTS:
                yield f"{where}.{key} is needed"
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        for index, (mine, theirs) in enumerate(zip(given, made, strict=True)):
            yield from differences(mine, theirs, f"{where}[{index}]")
    elif given != made:
        yield f"{where} is {given!r}, and read as {made!r}"


def wrong(each: Manifest) -> list[str]:
    model = getattr(models, MODELS[each["kind"]])
    return sorted(differences(each, model.from_dict(each).to_dict()))


def resources() -> dict[str, Manifest]:
    """The custom resources of the digits, in a queue of Kueue."""
    part = digits().kubernetes.model_copy(update={"gang": Gang(by="kueue", queue="training")})
    job = digits().model_copy(update={"kubernetes": part})
    made = [*manifests(job, Form.JOBSET), *manifests(job, Form.TRAINJOB)]
    return {each["kind"]: each for each in made if each["kind"] in MODELS}


@pytest.mark.parametrize("kind", MODELS)
def test_a_resource_is_as_its_definition_says(kind: str) -> None:
    assert wrong(resources()[kind]) == []


def test_what_a_definition_does_not_know_or_misses_is_found() -> None:
    jobset = copy.deepcopy(resources()["JobSet"])
    jobset["spec"]["network"]["enableDnsHostnames"] = True
    del jobset["spec"]["successPolicy"]["operator"]
    assert wrong(jobset) == [
        ".spec.network.enableDnsHostnames is unknown",
        ".spec.successPolicy.operator is needed",
    ]
    jobset["spec"]["replicatedJobs"][0]["replicas"] = "one"
    with pytest.raises(ValueError, match="valid integer"):
        wrong(jobset)
