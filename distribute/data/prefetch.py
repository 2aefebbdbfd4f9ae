"""Preparing elements ahead, in a thread, while the program computes."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...core.process.threads import new_thread, nobody_waits
from ..base.values import map_structure

_LAST_ELEMENT_S = 2.0  # at the end of the process, for threads that are at work
_running: weakref.WeakKeyDictionary[threading.Thread, "_Stop"] = weakref.WeakKeyDictionary()


class _EndOfElements:
    """A mark behind the last element; carries what ended the elements early."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Stop:
    """Tells a thread to end, and wakes it if it waits for room."""

    def __init__(self, free: "queue.SimpleQueue[None]") -> None:
        self._free = free
        self.told = False

    def __call__(self) -> None:
        self.told = True
        self._free.put(None)


@atexit.register
def _end_threads() -> None:
    """End all threads: one that were in a C++ library when Python ends would abort the process."""
    threads = list(_running.items())
    for _, stop in threads:
        stop()
    until = time.monotonic() + _LAST_ELEMENT_S
    for thread, _ in threads:
        thread.join(max(0, until - time.monotonic()))


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
        self._stop = _Stop(self._free)
        self._end: _EndOfElements | None = None
        thread = new_thread(
            "prefetch",
            partial(_fill, source, self._ready, self._free, self._stop, fresh),
            failed=nobody_waits,  # it hands on what it raises itself
        )
        thread.start()
        _running[thread] = self._stop
        weakref.finalize(self, self._stop)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> Any:
        if self._end is None:
            item = self._ready.get()
            self._free.put(None)
            if not isinstance(item, _EndOfElements):
                return item
            self._end = item
        error, self._end.error = self._end.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Prepare nothing more."""
        self._stop()


def copied(element: Any) -> Any:
    """Copy an element into memory of its own."""
    return map_structure(
        lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, element
    )


def _fill(
    source: Iterator[Any],
    ready: "queue.SimpleQueue[Any]",
    free: "queue.SimpleQueue[None]",
    stop: _Stop,
    fresh: bool,
) -> None:
    def put(item: Any) -> bool:
        free.get()
        if stop.told:
            return False
        ready.put(item)
        return True

    try:
        for item in source:
            # A generator may use one buffer for all of its batches, and goes on to the next one
            # now.
            if not put(item if fresh else copied(item)):
                return
    except BaseException as error:  # noqa: BLE001 - raised where the element would have been
        put(_EndOfElements(error))
    else:
        put(_EndOfElements(None))
