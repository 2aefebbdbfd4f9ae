"""Following objects of one kind: list, watch from there, go on, list again on 410."""

import threading
from collections.abc import Iterator

from ...core.errors import PeerLostError
from .answers import RefusedRequestError
from .client import KubernetesApi
from .explaining import error_of
from .retrying import wait_before
from .watched import Change, ExpiredVersionError, Watched

_MOST_FAILURES = 8  # in a row: about two minutes


class ObjectFollower:
    """Objects of one kind that a selector selects, and how they change.

    Args:
        api: The Kubernetes API.
        kind: Kind of the objects.
        selector: Label selector.
        watch_s: Time that a watch lasts before it is begun anew. Unit: seconds.
    """

    def __init__(self, api: KubernetesApi, kind: str, selector: str, watch_s: int = 240) -> None:
        self._api = api
        self._kind = kind
        self._selector = selector
        self._watch_s = watch_s
        self._state = Watched()
        self._failures = 0
        self._stop = threading.Event()

    @property
    def objects(self) -> dict[str, dict[str, object]]:
        """Objects as they are now, by name."""
        return self._state.objects

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
                if not self._state.version:
                    yield self._state.listed(self._api.list_all(self._kind, self._selector))
                self._state.began()
                chunks = self._api.watch(
                    self._kind, self._selector, self._state.version, self._watch_s
                )
                for chunk in chunks:
                    self._failures = 0
                    if changes := self._state.feed(chunk):
                        yield changes
            except ExpiredVersionError:
                self._list_again()
            except RefusedRequestError as error:
                self._failed(error)
            yield []

    def _list_again(self) -> None:
        self._state.version = ""
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
        self._pause(wait_before(refusal, self._failures - 1))

    def _pause(self, seconds: float) -> None:
        if self._failures > _MOST_FAILURES:
            raise PeerLostError(
                f"the Kubernetes API ended {self._failures} watches of {self._kind}s in a row; try "
                "again later"
            )
        self._api.clock.wait(self._stop, seconds)
