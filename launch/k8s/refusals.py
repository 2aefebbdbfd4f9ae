"""Answers that are errors: their status, their causes by field, their words. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_RETRIED = frozenset({0, 408, 429, 500, 502, 503, 504})
_LONGEST_S = 30.0
_LONGEST = 300
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
