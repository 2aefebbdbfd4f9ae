"""Answers of the Kubernetes API: one that is an error as an exception, a stream as chunks."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .refusals import Refusal, no_answer, read_refusal


class RefusedRequestError(Exception):
    """An answer that is an error; callers inside this package turn it into one for people."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class ByteChunks:
    """The body of an answer as it comes. Iterate once, in one thread; any thread may cancel."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        """Yield the chunks.

        Raises:
            RefusedRequestError: The connection broke off.
        """
        try:
            yield from self._response.stream(64 * 1024, decode_content=False)
        except Exception as error:
            raise refused(error) from error
        finally:
            self._response.close()  # its connection may be in the middle of an answer

    def cancel(self) -> None:
        """Let the thread that iterates go on, with an error or an end."""
        with contextlib.suppress(Exception):  # it has ended, or urllib3 is older than 2.3
            self._response.shutdown()


_WARNING = re.compile(r'^\d{3} \S+ "(.*)"$', re.S)


def warnings_of(response: Any) -> list[str]:
    """Find what the API server warns of beside its answer, e.g. that pods would break a policy.

    Source: RFC 7234, section 5.5: ``299 - "would violate PodSecurity …"``, one a header.
    """
    headers: Any = getattr(response, "headers", None)
    lines = headers.getlist("Warning") if hasattr(headers, "getlist") else []
    matches = [_WARNING.match(line.strip()) for line in lines]
    return [match[1].replace('\\"', '"') for match in matches if match]


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
