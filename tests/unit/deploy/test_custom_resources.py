"""The manifests of JobSet, TrainJob and Kueue beside the models of those who define them.

Kubeflow publishes models made from the definitions of its resources and of JobSet's. They ignore
what they do not know, and fill in what is missing: so an object is read and written again, and must
come out as it went in.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.manifests import Manifest, build

models = pytest.importorskip("kubeflow_trainer_api.models", reason="knows the custom resources")
pytestmark = pytest.mark.needs("kubectl or kustomize")
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
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
    return sorted(differences(each, MODELS[each["kind"]].from_dict(each).to_dict()))


def resources() -> Iterator[Any]:
    for name in ("jobset", "kueue", "trainjob"):
        for each in build(f"overlays/{name}"):
            if each["kind"] in MODELS:
                yield f"{name} {each['kind']}", each


@pytest.mark.parametrize(
    "name", ["jobset JobSet", "kueue JobSet", "trainjob TrainingRuntime", "trainjob TrainJob"]
)
def test_a_resource_is_as_its_definition_says(name: str) -> None:
    assert wrong(dict(resources())[name]) == []


def test_what_a_definition_does_not_know_or_misses_is_found() -> None:
    jobset = copy.deepcopy(dict(resources())["jobset JobSet"])
    jobset["spec"]["network"]["enableDnsHostnames"] = True
    [rule] = jobset["spec"]["failurePolicy"]["rules"]
    del rule["name"]
    assert wrong(jobset) == [
        ".spec.failurePolicy.rules[0].name is needed",
        ".spec.network.enableDnsHostnames is unknown",
    ]
    jobset["spec"]["replicatedJobs"][0]["replicas"] = "one"
    with pytest.raises(ValueError, match="valid integer"):
        wrong(jobset)
