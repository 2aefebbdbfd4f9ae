"""Why an image cannot be pulled: the cause out of what containerd, CRI-O and kubelet say. Pure."""

import re
from collections.abc import Iterable

PULL_ERROR = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull")
"""Reasons of a container that waits for its image."""

_WRAPPINGS = re.compile(
    r"(?:Back-off pulling image \"[^\"]*\"|ErrImagePull|Failed to pull image \"[^\"]*\""
    r"|rpc error: code = \w+ desc =|failed to pull and unpack image \"[^\"]*\""
    r"|failed to resolve reference \"[^\"]*\"|failed to copy|failed to do request"
    r"|failed to authorize|initializing source \S+|Error response from daemon"
    r"|reading manifest \S+ in \S+)(?::? +|$)"
)
_LONGEST = 200


def pull_cause(texts: Iterable[str]) -> str:
    """Find the innermost cause in these messages, e.g. ``no such host``; empty: none says one.

    Args:
        texts: Messages of the container's status and of the pod's events, the best one first.
    """
    for text in texts:
        cause = " ".join(text.split())
        while (match := _WRAPPINGS.match(cause)) is not None:
            cause = cause[match.end() :]
        if cause:
            return cause if len(cause) <= _LONGEST else f"… {cause[-_LONGEST:]}"
    return ""
