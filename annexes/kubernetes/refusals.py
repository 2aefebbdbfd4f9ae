"""Answers of the Kubernetes API that are errors: what they say, whether a request is sent again,
and the error for people, with what was tried and what to do. Pure.

Sent again after 429 (and what ``Retry-After`` says), 500, 502, 503, 504, 408 and a lost connection.
410 is for the caller that lists or watches: it begins again. A server that has not answered yet is
probably the wrong one, or not there: a person waits a few seconds for that sentence. One that has
answered is expected back, say after its upgrade.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import (
    AccessError,
    ConfigurationError,
    IncompatibleError,
    NotFoundError,
    PeerLostError,
    RopewalkError,
)

_RETRIED = frozenset({0, 408, 429, 500, 502, 503, 504})
_LONGEST_S = 30.0
_LONGEST = 300
_TRIES = 6
_REACH_S = 3.0
_RETURN_S = 60.0
GONE = 410
_LATER = "please apply your changes to the latest version and try again"
_NO_OBJECT = "failed to create typed patch object"
_FIXED = re.compile(
    r"field is immutable|updates to statefulset spec|is immutable after creation|"
    r"may not change once set"
)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A field that the API server does not accept.

    Attributes:
        field: Path of the field, e.g. ``spec.template``.
        message: Why, in the API server's words.
    """

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error, or no answer.

    Attributes:
        status: HTTP status; 0: there was no answer.
        message: The API server's words.
        retry_after_s: Time that it asks to wait; 0: it does not ask. Unit: seconds.
        causes: The fields that it names.
        is_final: Whether another try cannot succeed, although there was no answer: its certificate
            is not trusted.
        is_foreign: Whether it is no answer of the Kubernetes API: something else is at that
            address, or a proxy in between.
    """

    status: int
    message: str
    retry_after_s: float = 0.0
    causes: tuple[FieldProblem, ...] = ()
    is_final: bool = False
    is_foreign: bool = False

    @property
    def is_retried(self) -> bool:
        """Whether the same request may succeed later."""
        if self.status == 409:  # two requests at once; the count of a quota, for instance
            return _LATER in self.message
        return self.status in _RETRIED and not (self.is_final or self.is_no_object)

    def wait_s(self, attempt: int) -> float:
        """Compute the seconds until the next try; ``attempt`` is from 0. The server's word wins."""
        return self.retry_after_s or min(0.25 * 2.0**attempt, _LONGEST_S)

    def is_tried_again(self, attempt: int, elapsed_s: float, *, reached: bool) -> bool:
        """Decide whether a request is sent once more.

        Args:
            attempt: Number of the try that was refused, from 0.
            elapsed_s: Time since the first try. Unit: seconds.
            reached: The server has answered some request before.
        """
        if not self.is_retried or self.status:
            return self.is_retried and attempt < _TRIES - 1
        return elapsed_s + self.wait_s(attempt) < (_RETURN_S if reached else _REACH_S)

    @property
    def is_no_object(self) -> bool:
        """Whether what was sent is no object of its kind: status 500
        (kubernetes/kubernetes#122480).
        """
        return self.message.startswith(_NO_OBJECT)

    def is_conflict_with(self, manager: str) -> bool:
        """Return whether all fields that keep this from being applied are of one field manager.

        A field that a manager has patched is not its own when it applies: a manager is a name and
        an operation (kubernetes/kubernetes#107417).
        """
        owned = f'conflict with "{manager}"'
        return (
            self.status == 409
            and bool(self.causes)
            and all(each.message.startswith(owned) for each in self.causes)
        )

    @property
    def is_missing(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def is_missing_namespace(self) -> bool:
        """The namespace itself does not exist."""
        return self.is_missing and self.message.startswith("namespaces ")

    @property
    def is_gone(self) -> bool:
        """The version that was asked for is too old to be known: list again."""
        return self.status == GONE

    @property
    def is_about_fixed_fields(self) -> bool:
        """Only fields that cannot change while the object exists are wrong."""
        texts = [cause.message for cause in self.causes] or [self.message]
        # A webhook's word on a custom resource is 403.
        return self.status in (403, 422) and all(_FIXED.search(text) for text in texts)

    @property
    def is_of_what_is_there(self) -> bool:
        """Whether it may be about the object that is there, and not about a new one like it."""
        return self.status in (409, 422) or self.is_about_fixed_fields

    @property
    def is_untried(self) -> bool:
        """An admission webhook takes no dry run, so nothing is known about the object."""
        return self.status == 400 and "does not support dry run" in self.message

    @property
    def words(self) -> str:
        """The causes in one sentence, without the values that the API server repeats."""
        if not self.causes:
            return _cut(self.message)
        return _cut("; ".join(f"{each.field}: {_reason(each.message)}" for each in self.causes))


def _reason(message: str) -> str:
    """Drop the value from ``Invalid value: <the whole pod template>: field is immutable``."""
    first = message.split("\n", 1)[0]
    if first.startswith("Invalid value: ") and len(first) > _LONGEST:
        return first.rpartition(": ")[2]
    return first


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def read_refusal(status: int, body: str, headers: Mapping[str, str]) -> Refusal:
    """Read an HTTP answer as a refusal; the body is a ``Status`` object, or a proxy's page."""
    try:
        said = json.loads(body)
        message = str(said["message"])
        causes = _causes(said)
        is_foreign = False
    except (ValueError, KeyError, TypeError, AttributeError):
        message, causes, is_foreign = " ".join(body.split())[:200], (), True
    after_s = _seconds(headers.get("Retry-After", ""))
    return Refusal(status, message, after_s, causes, is_foreign=is_foreign)


def _causes(said: Mapping[str, Any]) -> tuple[FieldProblem, ...]:
    listed = (said.get("details") or {}).get("causes") or []
    return tuple(FieldProblem(str(c.get("field", "")), str(c.get("message", ""))) for c in listed)


def _seconds(text: str) -> float:
    return min(float(text), _LONGEST_S) if text.strip().isdecimal() else 0.0


def no_answer(error: BaseException) -> Refusal:
    """Describe an error of the connection as a refusal, in a few words."""
    for each in _chain(error):
        kind = type(each).__name__  # of ssl, socket and urllib3, which belong to others
        if kind == "SSLCertVerificationError":
            why = str(getattr(each, "verify_message", "")).rstrip(".")
            return Refusal(0, f"its certificate is not trusted: {why}", is_final=True)
        if kind == "gaierror":
            return Refusal(0, "its name cannot be resolved")
        if isinstance(each, TimeoutError) or "Timeout" in kind:
            return Refusal(0, "no answer in time")
        if isinstance(each, OSError) and each.strerror:
            return Refusal(0, each.strerror.lower())
    return Refusal(0, f"the connection broke off ({type(error).__name__})")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, innermost last."""
    seen: list[BaseException] = []
    more: BaseException | None = error
    while more is not None and more not in seen:
        seen.append(more)
        yield more
        inner = [getattr(more, "reason", None), *more.args, more.__cause__, more.__context__]
        more = next((each for each in inner if isinstance(each, BaseException)), None)


class RefusedRequestError(Exception):
    """An answer that is an error; callers in this project turn it into one for people."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refused(error: Exception) -> Exception:
    """Convert the client's error to a refusal; one that is no answer and no lost connection
    stays.
    """
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        body = getattr(error, "body", "") or ""
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        headers: Mapping[str, str] = getattr(error, "headers", None) or {}
        reason = str(getattr(error, "reason", "") or "")  # of an answer without a body
        return RefusedRequestError(read_refusal(status, text or reason, headers))
    # urllib3 is the client's own business: its errors are known by where they are made.
    is_lost = isinstance(error, OSError | ValueError) or status == 0
    if is_lost or type(error).__module__.startswith("urllib3."):
        return RefusedRequestError(no_answer(error))
    return error


# -- for people ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """The target of a command.

    Attributes:
        namespace: Namespace of the job.
        server: Address of the API server, as the kubeconfig has it.
        context: Value of ``--context``; empty: the current context.
        job_file: Value of ``--job``; empty: the usual file.
        is_task: Whether a task of a job asks, and no person.
    """

    namespace: str
    server: str = ""
    context: str = ""
    job_file: str = ""
    is_task: bool = False

    def command(self, verb: str, name: str = "", *flags: str) -> str:
        """Write a command that finds the same job again: ``ropewalk k8s status --name digits -n
        train``.

        Args:
            verb: The command below ``ropewalk k8s``.
            name: Name of the job; empty: the command reads the job file.
            flags: More words, e.g. ``"--watch"``.
        """
        words = ["ropewalk", "k8s", verb, *flags]
        file = ["--job", self.job_file] if self.job_file else []
        words += ["--name", name] if name else file
        return shlex.join([*words, *self.flags])

    @property
    def flags(self) -> list[str]:
        """The words that say namespace and context, for ``kubectl`` too."""
        return ["-n", self.namespace, *(["--context", self.context] if self.context else [])]


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
        case status if refusal.is_foreign and status not in (401, GONE) and not refusal.is_retried:
            return ConfigurationError(
                f"{said}. This is no answer of a Kubernetes API: check the server of the context "
                f"({where.server}), and the proxy (HTTPS_PROXY, NO_PROXY)"
            )
        case 401 | 403 if where.is_task:
            return AccessError(said)
        case 401:
            return AccessError(f"{said}. Log in again, or choose another context (--context)")
        case 404:
            return NotFoundError(said, namespace=where.namespace)
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
        case status if refusal.is_retried or refusal.is_gone:
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


_ACCOUNT = re.compile(r'User \\?"([^"\\]+)\\?" cannot ')  # its quotes may be those of JSON
_SERVICE_ACCOUNT = "system:serviceaccount:"


def account_of(message: str) -> str:
    """Find the account in the message of a 403: ``system:serviceaccount:train:default`` or a user.

    Empty: the message names none, so that it was not a role that was missing.
    """
    match = _ACCOUNT.search(message)
    return match[1] if match else ""


def grant(account: str, role: str, namespace: str) -> str:
    """Write the ``kubectl`` command that binds an account to a role of a namespace."""
    if account.startswith(_SERVICE_ACCOUNT):
        who = f"--serviceaccount={account.removeprefix(_SERVICE_ACCOUNT)}"
    else:
        who = f"--user={account}"
    name = re.sub(r"[^a-z0-9-]+", "-", f"{role}-{account.rpartition(':')[2]}".lower()).strip("-")
    return f"kubectl -n {namespace} create rolebinding {name} --role={role} {who}"
