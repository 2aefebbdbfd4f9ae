"""Refusals of the Kubernetes API as errors: what was tried, why not, what to do. Pure."""

from ...cluster.resolvers.pod_access import account_of, grant
from ...core.errors import (
    AccessError,
    ConfigurationError,
    IncompatibleError,
    NotFoundError,
    PeerLostError,
    RopewalkError,
)
from .refusals import Refusal
from .where import Where

_DELETES_NAMESPACE = 'cannot delete resource "namespaces"'
_TERMINATING = "because it is being terminated"
_UNKNOWN_FIELD = "field not declared in schema"
_GRANTS = "attempting to grant RBAC permissions not currently held"


def error_of(refusal: Refusal, what: str, where: Where) -> RopewalkError:
    """Make the error of a refusal that is final.

    Args:
        refusal: The answer.
        what: Action that was tried, e.g. ``"apply Job digits-worker"``.
        where: Cluster and namespace.
    """
    if refusal.is_missing_namespace:
        return missing_namespace(where)
    said = f"{what} in namespace {where.namespace}: {refusal.status} {refusal.words}".rstrip()
    match refusal.status:
        case 0:
            server = f" at {where.server}" if where.server else ""
            return PeerLostError(
                f"the Kubernetes API server{server} cannot be reached: {refusal.message}; check "
                "that the cluster runs, and the context (`kubectl config current-context`)"
            )
        case status if refusal.is_foreign and status != 401 and not refusal.is_retried:
            return ConfigurationError(
                f"{said}. This is no answer of a Kubernetes API: check the server of the context "
                f"({where.server}), and the proxy (HTTPS_PROXY, NO_PROXY)"
            )
        case 401:
            return AccessError(f"{said}. Log in again, or choose another context (--context)")
        case 403 if _DELETES_NAMESPACE in refusal.message:
            return AccessError(
                f"{said}. Nothing was deleted; without --namespace-too the job alone is deleted"
            )
        case 403 if _TERMINATING in refusal.message:
            return ConfigurationError(
                f"{what}: namespace {where.namespace} is being deleted; make it anew when it is "
                "gone, or choose another one by --namespace"
            )
        case 403 if account_of(refusal.message):
            return AccessError(
                f"{said}. Ask for one of the roles of deploy/k8s/rbac: `{_binding(refusal, where)}`"
            )
        case 403 if _GRANTS in refusal.message:
            return AccessError(
                f"{said}. With status, end_job or gang: {{by: chief}} the chief's account gets "
                "rights that you do not have yourself; ask for the newest ropewalk-operator of "
                "deploy/k8s/rbac, or leave these out"
            )
        case 403:
            return AccessError(f"{said}. A policy of the cluster or a quota refuses it")
        case 409 if not refusal.is_retried:
            return IncompatibleError(
                f"{said}. --force takes these fields over; or take them out of what the other "
                "manager applies"
            )
        case status if refusal.is_retried:
            return PeerLostError(f"the Kubernetes API does not answer (HTTP {status}): {said}")
        case _ if _UNKNOWN_FIELD in refusal.message:
            return ConfigurationError(
                f"{said}. The cluster does not know this field: Kubernetes has all of a job since "
                "1.30; of a JobSet or a TrainJob the controller may be too old"
            )
    return ConfigurationError(said)


def missing_namespace(where: Where) -> NotFoundError:
    """Make the error of a namespace that does not exist; says how to make it."""
    context = f" --context {where.context}" if where.context else ""
    return NotFoundError(
        f"there is no namespace {where.namespace}; `kubectl create namespace {where.namespace}"
        f"{context}` makes it, --namespace chooses another one",
        namespace=where.namespace,
    )


def _binding(refusal: Refusal, where: Where) -> str:
    """Write a command that binds the account of the refusal to the role that has the right."""
    reads = any(f" cannot {verb} " in refusal.message for verb in ("get", "list", "watch"))
    role = "ropewalk-viewer" if reads else "ropewalk-operator"
    return grant(account_of(refusal.message), role, where.namespace)
