"""Kubernetes as a launcher."""

from collections.abc import Callable

from ..job.model import JobFile
from ..job.yaml_output import dump_documents
from .applying import apply_job
from .client import KubernetesApi
from .code import ShippedCode
from .form import Form
from .kinds import Done
from .manifests import manifests
from .preflight import warnings
from .status_objects import check_rendered


class KubernetesLauncher:
    """Applies the objects of a job; the cluster does the rest.

    Args:
        api: The Kubernetes API.
        form: Form of the jobs' objects.
        code: The job's code, if that is not in its image.
        force: Take over fields that other managers own.
        replace: Delete the job's tasks first.
        say: Called with warnings and with what happens meanwhile.
    """

    def __init__(
        self,
        api: KubernetesApi,
        *,
        form: Form = Form.OBJECTS,
        code: ShippedCode | None = None,
        force: bool = False,
        replace: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._form = form
        self._code = code
        self._force = force
        self._replace = replace
        self._say = say

    def render(self, job: JobFile) -> str:
        """Write the objects, as YAML."""
        check_rendered(job, self._form)
        return dump_documents(manifests(job, self._form, self._code))

    def start(self, job: JobFile) -> int:
        """Apply them; 0."""
        self.apply(job, dry_run=False)
        return 0

    def apply(self, job: JobFile, *, dry_run: bool) -> list[Done]:
        """Apply them, or have the API server check them alone."""
        self._api.on_warning = lambda text: self._say(f"warning: {text}")
        for warning in warnings(self._api, manifests(job, self._form, self._code)):
            self._say(f"warning: {warning}")
        return apply_job(
            self._api,
            job,
            self._form,
            self._code,
            force=self._force,
            dry_run=dry_run,
            replace=self._replace,
            say=self._say,
        )
