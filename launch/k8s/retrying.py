"""Retries of requests to the Kubernetes API. Pure.

Retried: 429 (after what ``Retry-After`` says), 500, 502, 503, 504, 408 and lost connections. 410
is for the caller that lists or watches: it begins again. Everything else is reported at once.

A server that has not answered yet is probably the wrong one, or not there: a person waits a few
seconds for that sentence. One that has answered is expected back, say after its upgrade.
"""

from .refusals import Refusal

_LONGEST_S = 30.0
_TRIES = 6
_REACH_S = 3.0
_RETURN_S = 60.0


def wait_before(refusal: Refusal, attempt: int) -> float:
    """Compute the seconds until the next try; ``attempt`` counts from 0. What the API server asks
    for wins.
    """
    return refusal.retry_after_s or min(0.25 * 2.0**attempt, _LONGEST_S)


def is_tried_again(refusal: Refusal, attempt: int, elapsed_s: float, *, reached: bool) -> bool:
    """Decide whether a request is sent once more.

    Args:
        refusal: The answer to the last try.
        attempt: Number of that try, from 0.
        elapsed_s: Time since the first try. Unit: seconds.
        reached: The server has answered some request before.
    """
    if not refusal.is_retried:
        return False
    if refusal.status:
        return attempt < _TRIES - 1
    patience_s = _RETURN_S if reached else _REACH_S
    return elapsed_s + wait_before(refusal, attempt) < patience_s
