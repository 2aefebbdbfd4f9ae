"""Following objects of one kind: list, watch from there, go on, list again on 410.

A watch says what changed since a version. It may end at any time; then it goes on from the last
version that was heard of, which bookmarks keep young. If the server has forgotten that version
(410, as an answer or as an event) everything is listed anew, and what is different from before are
the changes.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....core.errors import PeerLostError
from .api import KubernetesApi, Listing
from .refusals import RefusedRequestError, error_of

Json = dict[str, Any]

_MOST_FAILURES = 8  # in a row: about two minutes


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


class ObjectFollower:
    """Objects of one kind that a selector selects, and how they change.

    Args:
        api: The Kubernetes API.
        kind: Kind of the objects.
        selector: Label selector.
        watch_s: Time that a watch lasts before it is begun anew. Unit: seconds.

    Attributes:
        objects: Objects as they are now, by name.
    """

    def __init__(self, api: KubernetesApi, kind: str, selector: str, watch_s: int = 240) -> None:
        self._api = api
        self._kind = kind
        self._selector = selector
        self._watch_s = watch_s
        self._version = ""
        self._failures = 0
        self._stop = threading.Event()
        self.objects: dict[str, Json] = {}

    def stop(self) -> None:
        """End :meth:`rounds` after the watch that is under way. Any thread."""
        self._stop.set()

    def rounds(self) -> Iterator[list[Change]]:
        """Yield changes as they come; an empty list whenever a watch ends.

        The first one is what is there now.

        Raises:
            PeerLostError: The API has not answered for minutes.
            RopewalkError: It refuses.
        """
        while not self._stop.is_set():
            try:
                if not self._version:
                    yield self._listed(self._api.list_all(self._kind, self._selector))
                for event in self._api.watch(
                    self._kind, self._selector, self._version, self._watch_s
                ):
                    self._failures = 0
                    if change := self._changed(event):
                        yield [change]
            except RefusedRequestError as error:
                self._failed(error)
            yield []

    def _listed(self, listing: Listing) -> list[Change]:
        """Take a new list; what is different from before."""
        fresh, before = {_name(item): item for item in listing.items}, self.objects
        self.objects, self._version = fresh, listing.version
        gone = [Change(name, old, gone=True) for name, old in before.items() if name not in fresh]
        return gone + [
            Change(name, item)
            for name, item in fresh.items()
            if name not in before or _version(item) != _version(before[name])
        ]

    def _changed(self, event: Json) -> Change | None:
        """Take an event of a watch; what has changed."""
        kind, item = event["type"], event["object"]
        self._version = _version(item) or self._version
        if kind == "BOOKMARK":
            return None
        name = _name(item)
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = item
        return Change(name, item, gone=kind == "DELETED")

    def _list_again(self) -> None:
        self._version = ""
        self._failures += 1
        if self._failures > 1:  # the first time at once
            self._pause(min(2.0**self._failures, 30))

    def _failed(self, error: RefusedRequestError) -> None:
        refusal = error.refusal
        if refusal.is_gone:
            self._list_again()
            return
        self._failures += 1
        if not refusal.is_retried or self._failures > _MOST_FAILURES:
            raise error_of(refusal, f"watch {self._kind}s", self._api.where) from error
        self._pause(refusal.wait_s(self._failures - 1))

    def _pause(self, seconds: float) -> None:
        if self._failures > _MOST_FAILURES:
            raise PeerLostError(
                f"the Kubernetes API ended {self._failures} watches of {self._kind}s in a row; try "
                "again later"
            )
        self._api.clock.wait(self._stop, seconds)


def _name(item: Json) -> str:
    return str(item.get("metadata", {}).get("name", ""))


def _version(item: Json) -> str:
    return str(item.get("metadata", {}).get("resourceVersion", ""))
