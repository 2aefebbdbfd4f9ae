"""The end of a job's parameter servers on Kubernetes: its chief has them scaled to none.

A StatefulSet has no end: its pods are started again when the job is over, and keep what they have
requested. So the chief's container, which knows that the job is over for good, sets its replicas to
0, with an account of its own that may do this and nothing else.
"""

import logging
from pathlib import Path

from ..core.errors import WindlassError
from ..core.exit_codes import is_retryable
from ..core.settings import read_environment
from ..net.pod_account import ACCOUNT_FOLDER, PodAccount, cluster_url

log = logging.getLogger(__name__)

_MERGE = "application/merge-patch+json"
_NONE = {"spec": {"replicas": 0}}


def end_ps(code: int, folder: Path = ACCOUNT_FOLDER) -> None:
    """Scale the StatefulSet of ``WINDLASS_PS_WORKLOAD`` to none if the chief has ended for good.

    What goes wrong is logged: the job has ended as it has.

    Args:
        code: Exit code of the chief's container. One that is worth a restart ends nothing.
        folder: Folder of the pod's account.
    """
    name, namespace = read_environment("WINDLASS_PS_WORKLOAD"), read_environment("POD_NAMESPACE")
    url = cluster_url()
    if is_retryable(code) or not (name and namespace and url):
        return
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}/scale"
    try:
        PodAccount(url, folder).send("PATCH", path, _NONE, _MERGE)
    except WindlassError as error:
        log.warning("the ps are not ended, and keep what they have requested: %s", error)
    else:
        log.info("the job is over: its ps end")
