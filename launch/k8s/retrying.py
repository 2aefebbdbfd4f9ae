"""Which answers of the Kubernetes API are worth another try, and what the others mean. Pure.

Retried: 429 (after what ``Retry-After`` says), 500, 502, 503, 504, 408 and lost connections. 410
is for whoever lists or watches: it begins again. All else is told, with what to do.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.errors import (
    AccessError,
    ConfigurationError,
    IncompatibleError,
    PeerLostError,
    WindlassError,
)

_RETRIED = frozenset({0, 408, 429, 500, 502, 503, 504})
_LONGEST_S = 30.0
GONE = 410


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is none.

    Attributes:
        status: Of HTTP; 0: there was no answer.
        message: In the words of the API.
        retry_after_s: What it asks to wait; 0: nothing.
    """

    status: int
    message: str
    retry_after_s: float = 0.0

    @property
    def is_retried(self) -> bool:
        """Whether the same request may do better later."""
        return self.status in _RETRIED

    @property
    def is_missing(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def is_gone(self) -> bool:
        """The version that was asked for is too old to be known: list again."""
        return self.status == GONE


def read_refusal(status: int, body: str, headers: Mapping[str, str]) -> Refusal:
    """From an answer of HTTP; the body is a ``Status`` object, or a proxy's page."""
    try:
        said = json.loads(body)
        message = str(said["message"])
    except (ValueError, KeyError, TypeError):
        message = " ".join(body.split())[:200]
    return Refusal(status, message, _seconds(headers.get("Retry-After", "")))


def _seconds(text: str) -> float:
    return min(float(text), _LONGEST_S) if text.strip().isdecimal() else 0.0


def wait_before(refusal: Refusal, attempt: int) -> float:
    """Seconds until the next try; ``attempt`` counts from 0. What the API asks for wins."""
    return refusal.retry_after_s or min(0.25 * 2.0**attempt, _LONGEST_S)


def error_of(refusal: Refusal, what: str, namespace: str) -> WindlassError:
    """The error of a refusal that is final: what was tried, what was said, what to do.

    Args:
        refusal: The answer.
        what: That was tried, e.g. ``"apply Job digits-worker"``.
        namespace: Where.
    """
    said = f"{what} in namespace {namespace}: {refusal.status} {refusal.message}".rstrip()
    match refusal.status:
        case 401:
            return AccessError(f"{said}. Log in again, or choose another context (--context)")
        case 403:
            return AccessError(
                f"{said}. Ask for a role that may do this; deploy/k8s has one for this command"
            )
        case 404 if "namespace" in refusal.message:
            return ConfigurationError(f"{said}. `kubectl create namespace {namespace}` makes it")
        case 409:
            return IncompatibleError(
                f"{said}. Somebody else set these fields. --force takes them over; or take them "
                "out of what the other one applies"
            )
        case 422 if "immutable" in refusal.message:
            return ConfigurationError(
                f"{said}. What a Job runs cannot be changed while it is there: `windlass k8s "
                "delete` it and apply again; the checkpoints stay, and training resumes"
            )
        case status if refusal.is_retried:
            asked = f" (HTTP {status})" if status else ""
            return PeerLostError(f"the Kubernetes API does not answer{asked}: {said}")
    return ConfigurationError(said)
