"""On a real Kubernetes: ``E2E_K8S=1 pytest tests/annex/kubernetes/real``.

The current context of ``KUBECONFIG`` is used, in namespaces of the tests' own, which they make and
delete with ``kubectl``. ``helpers/kubernetes/real_cluster.py`` has the variables that choose image
and volume; ``E2E_K8S_LOAD`` is a command that brings the image there without a registry (``kind
load image-archive digits.tar``), run once before the tests. Where no StorageClass is the default
one, a volume is made of a folder in ``/tmp`` of the node that a first pod runs on.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.kubernetes.real_cluster import RealJob, own_namespace


@pytest.fixture(scope="session", autouse=True)
def _image_is_there() -> None:
    if load := os.environ.get("E2E_K8S_LOAD"):
        subprocess.run(shlex.split(load), check=True, timeout=900)


@pytest.fixture
def namespace() -> Iterator[str]:
    with own_namespace() as name:
        yield name


@pytest.fixture
def job(namespace: str, tmp_path: Path) -> RealJob:
    """The job file of the digits in a namespace of its own."""
    made = RealJob(tmp_path, namespace)
    made.write()
    return made
