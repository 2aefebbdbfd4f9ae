"""Kubernetes as a launcher."""

from ..job.model import JobFile
from ..job.yaml_output import dump_documents
from .client import KubernetesApi
from .manifests import manifests
from .operations import Done, apply_job


class KubernetesLauncher:
    """Applies the objects of a job; the cluster does the rest.

    Args:
        api: The Kubernetes API.
        force: Take over fields that others own.
    """

    def __init__(self, api: KubernetesApi, *, force: bool = False) -> None:
        self._api = api
        self._force = force

    def render(self, job: JobFile) -> str:
        """The objects, as YAML."""
        return dump_documents(manifests(job))

    def start(self, job: JobFile) -> int:
        """Apply them; 0."""
        self.apply(job, dry_run=False)
        return 0

    def apply(self, job: JobFile, *, dry_run: bool) -> list[Done]:
        """Apply them, or let the API check them."""
        return apply_job(self._api, job, force=self._force, dry_run=dry_run)
