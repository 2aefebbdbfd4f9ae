"""Objects of one kind as a list and the watch after it tell them. Pure: bytes in, changes out.

A watch says what changed since a version. It may end at any time, in the middle of a line; then it
goes on from the last version that was heard of, which bookmarks keep young. If the server has
forgotten that version (410, as an answer or as an event) everything is listed anew, and what is
different from before are the changes.
"""

import json
from dataclasses import dataclass
from typing import Any

from .kinds import Listing
from .refusals import GONE

Json = dict[str, Any]

_LONGEST_LINE = 8 * 1024 * 1024  # an object of Kubernetes has at most 1.5 MiB


class ExpiredVersionError(Exception):
    """The version is not known any more: list again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object: it was added, changed or deleted.

    Attributes:
        name: Name of the object.
        object: The object as it is now; a deleted one as it was last seen.
        gone: Whether it was deleted.
    """

    name: str
    object: Json
    gone: bool = False


class Watched:
    """The objects, and where a watch goes on."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.version = ""
        self._rest = b""

    def listed(self, listing: Listing) -> list[Change]:
        """Take a new list; what is different from before."""
        fresh = {_name(item): item for item in listing.items}
        changes = [
            Change(name, old, gone=True) for name, old in self.objects.items() if name not in fresh
        ]
        changes += [
            Change(name, item)
            for name, item in fresh.items()
            if _version(item) != _version(self.objects.get(name, {})) or name not in self.objects
        ]
        self.objects, self.version, self._rest = fresh, listing.version, b""
        return changes

    def began(self) -> None:
        """Begin a watch: what the last one left behind is no line of this one."""
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Change]:
        """Take more of a watch.

        Raises:
            ExpiredVersionError: The server says 410, or the watch cannot go on.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ExpiredVersionError(f"an event of more than {_LONGEST_LINE} bytes")
        changes = []
        for line in lines:
            if line.strip():
                changes += self._event(line)
        return changes

    def _event(self, line: bytes) -> list[Change]:
        try:
            event = json.loads(line)
            kind, item = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise ExpiredVersionError(f"no event: {line[:80]!r}") from error
        if kind == "ERROR":
            code = item.get("code")
            words = "the version has expired" if code == GONE else "the watch failed"
            raise ExpiredVersionError(f"{words}: {item.get('message', code)}")
        self.version = _version(item) or self.version
        if kind == "BOOKMARK":
            return []
        name = _name(item)
        if kind == "DELETED":
            self.objects.pop(name, None)
            return [Change(name, item, gone=True)]
        self.objects[name] = item
        return [Change(name, item)]


def _name(item: Json) -> str:
    return str(item.get("metadata", {}).get("name", ""))


def _version(item: Json) -> str:
    return str(item.get("metadata", {}).get("resourceVersion", ""))
