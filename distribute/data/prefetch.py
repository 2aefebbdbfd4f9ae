"""Preparing elements ahead, in a thread, while the program computes."""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.values import map_structure

_WAIT_S = 0.1


class _End:
    """After the last element; carries what ended them early."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher:
    """Iterates over ``source`` a few elements ahead. Its thread ends with it, or with the source.

    Args:
        source: Used in the thread alone from now on.
        depth: Elements that wait at most.
        fresh: The source gives memory that it does not use again; else elements are copied.
    """

    def __init__(self, source: Iterator[Any], depth: int, *, fresh: bool = False) -> None:
        # Two queues without a bound, which are C, instead of one with, which is Python.
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._free.put(None)
        self._stopped = threading.Event()
        self._end: _End | None = None
        thread = threading.Thread(
            target=_fill,
            args=(source, self._ready, self._free, self._stopped, fresh),
            name="prefetch",
            daemon=True,
        )
        thread.start()
        weakref.finalize(self, self._stopped.set)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Any:
        if self._end is None:
            item = self._ready.get()
            self._free.put(None)
            if not isinstance(item, _End):
                return item
            self._end = item
        error, self._end.error = self._end.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Prepare nothing more."""
        self._stopped.set()


def copied(element: Any) -> Any:
    """An element whose arrays have memory of their own."""
    return map_structure(
        lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, element
    )


def _fill(
    source: Iterator[Any],
    ready: "queue.SimpleQueue[Any]",
    free: "queue.SimpleQueue[None]",
    stopped: threading.Event,
    fresh: bool,
) -> None:
    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                free.get(timeout=_WAIT_S)
            except queue.Empty:
                continue
            ready.put(item)
            return True
        return False

    try:
        for item in source:
            # A generator may use one buffer for all of its batches, and goes on to the next one
            # now.
            if not put(item if fresh else copied(item)):
                return
    except BaseException as error:  # noqa: BLE001 - raised where the element would have been
        put(_End(error))
    else:
        put(_End(None))
