"""Events on their way to a file: a bounded queue, and a thread that empties it.

Adding an event does not wait for the disk. Only where the queue is full it waits a moment,
then the event is dropped and counted: summaries are for looking, and no reason to hold up, or to
end, a job. For the same reason a file system that fails is told of once, in the log; ``flush`` and
``close`` raise.
"""

import atexit
import contextlib
import itertools
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Protocol

from ...core.checkpoint.folder import Folder, LocalFolder, open_folder
from ...core.errors import ConfigurationError, RopewalkError, StorageError
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread, nobody_waits
from .encoding import event_of, record_of, scalars, version_event

log = logging.getLogger(__name__)

# -- Folders of a job's own event files: runs in ``model_dir/tensorboard`` ----------------------

FOLDER = "tensorboard"
JOB_RUN = "job"
EVALUATOR_RUN = "eval"


def run_folder(model_dir: str, run: str) -> str:
    """Find the folder of a run in a model directory.

    Args:
        model_dir: Path or fsspec URL.
        run: Name of the run as TensorBoard shows it.
    """
    return f"{model_dir.rstrip('/')}/{FOLDER}/{run}"


# -- Event files in a folder: one that grows on this machine's file systems; on object stores,
# which
#
# append nothing, one more with every flush. TensorBoard reads both in the order of their names.


_number = itertools.count()


class EventFile(Protocol):
    """Takes events; used by one thread."""

    def write(self, events: Sequence[bytes]) -> None:
        """Take serialized events.

        Raises:
            OSError: The file system refused.
        """

    def flush(self) -> None:
        """Let readers see what was written; errors as of :meth:`write`."""

    def close(self) -> None:
        """End the file; errors as of :meth:`write`."""


def open_event_file(logdir: str, suffix: str = "") -> EventFile:
    """Open a new file in a folder, which is made if it is missing.

    Args:
        logdir: Path or fsspec URL.
        suffix: Suffix of the file's name.

    Raises:
        ConfigurationError: No file system supports such URLs, or its package is not installed.
        OSError: The file system refused.
    """
    try:
        folder = open_folder(logdir)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(
            f"event files cannot be written to {logdir!r}: {error}", path=logdir
        ) from error
    folder.make()
    host = socket.gethostname().replace("/", "-")
    name = f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.{next(_number)}"
    if isinstance(folder, LocalFolder):
        return _GrowingFile(folder, f"{name}{suffix}")
    return _Parts(folder, name, suffix)


class _GrowingFile:
    def __init__(self, folder: Folder, name: str) -> None:
        self._open = contextlib.ExitStack()
        self._stream: IO[bytes] = self._open.enter_context(folder.create(name))
        self.write([version_event()])
        self.flush()

    def write(self, events: Sequence[bytes]) -> None:
        self._stream.write(b"".join(map(record_of, events)))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._open.close()


class _Parts:
    def __init__(self, folder: Folder, name: str, suffix: str) -> None:
        self._folder, self._name, self._suffix = folder, name, suffix
        self._written = 0
        self._records: list[bytes] = []

    def write(self, events: Sequence[bytes]) -> None:
        self._records += map(record_of, events)

    def flush(self) -> None:
        if not self._records:
            return
        data = b"".join([record_of(version_event()), *self._records])
        self._folder.put(f"{self._name}.{self._written:06d}{self._suffix}", data)
        self._written += 1
        self._records.clear()

    def close(self) -> None:
        self.flush()


_dropped = RareLog(log)

_FLUSH_TIMEOUT_S = 60.0  # an object store, or a file server that wakes up
_MAX_BYTES = 64 * 1024 * 1024
_open: "weakref.WeakSet[EventWriter]" = weakref.WeakSet()


class EventWriter:
    """Writes events to a file of its own in a folder. Thread-safe.

    The file is made by the constructor. Its thread ends with :meth:`close`, which is also called at
    the end of the process.

    Args:
        logdir: Path or fsspec URL.
        max_queue: Maximal number of waiting events.
        flush_s: Longest time until a written event is in the file. Unit: seconds.
        suffix: Suffix of the file's name.
        room_s: Time in which a burst, such as a histogram of every variable, is written: so long a
            program waits before an event is dropped. Unit: seconds.
        open_file: Opens the file.

    Attributes:
        dropped: Number of events dropped because the queue was full.

    Raises:
        ConfigurationError: No file system supports such URLs.
        StorageError: The folder is not writable.
    """

    def __init__(
        self,
        logdir: str,
        *,
        max_queue: int = 1000,
        flush_s: float = 2.0,
        suffix: str = "",
        room_s: float = 1.0,
        open_file: Callable[[str, str], EventFile] = open_event_file,
    ) -> None:
        self.logdir = logdir
        self._max_queue = max_queue
        self._flush_s = flush_s
        self._suffix = suffix
        self._room_s = room_s
        self._open_file = open_file
        self.dropped = 0
        self._begin()
        if not _open:
            atexit.register(_close_all)
        _open.add(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._flushes = self._asked = 0  # made; asked for
        self._closing = False
        self._error: RopewalkError | None = None
        try:
            file = self._open_file(self.logdir, self._suffix)
        except OSError as error:
            raise self._storage_error(error) from error
        self._thread = new_thread(
            "event-file", partial(self._empty_queue, file), failed=nobody_waits
        )
        self._thread.start()

    def add(self, event: bytes) -> bool:
        """Have a serialized event written; False: it was dropped."""
        if self._pid != os.getpid():  # a fork, which has neither the thread nor the file
            self._begin()
        with self._changed:
            if self._is_full and not self._error and not self._closing:
                self._changed.wait_for(
                    lambda: not self._is_full or self._error or self._closing, self._room_s
                )
            if self._is_full or self._error or self._closing:
                self.dropped += 1
                if self._is_full:
                    _dropped.warning(
                        "dropped a summary: %d wait to be written to %s, which takes them slowly",
                        len(self._queue),
                        self.logdir,
                    )
                return False
            self._queue.append(event)
            self._bytes += len(event)
            self._changed.notify_all()
        return True

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Have numbers written.

        Args:
            step: The global step.
            values: Number of each tag.
        """
        self.add(event_of(step, scalars(values)))

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= self._max_queue or self._bytes >= _MAX_BYTES

    def flush(self) -> None:
        """Return when what was added is in the file.

        Raises:
            StorageError: It could not be written, now or before, or takes longer than a minute.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            if not self._thread.is_alive() and self._error is None:
                return  # closed
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._flushes >= mine or self._error, _FLUSH_TIMEOUT_S
            )
            error = self._error
        if error is not None:
            raise error
        if not done:
            raise self._storage_error(TimeoutError(f"not written in {_FLUSH_TIMEOUT_S:g} s"))

    def close(self) -> None:
        """Write what was added, and end the file. Idempotent; errors as of :meth:`flush`."""
        _open.discard(self)
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_FLUSH_TIMEOUT_S)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise self._storage_error(TimeoutError(f"not written in {_FLUSH_TIMEOUT_S:g} s"))

    # -- the thread --------------------------------------------------------------------------

    def _empty_queue(self, file: EventFile) -> None:
        flush_at = float("inf")  # of what is written and not flushed
        try:
            while True:
                with self._changed:
                    wait_s = flush_at - time.monotonic()
                    self._changed.wait_for(
                        lambda: self._queue or self._closing or self._asked > self._flushes,
                        None if wait_s == float("inf") else max(0.0, wait_s),
                    )
                    events, asked, closing = list(self._queue), self._asked, self._closing
                    self._queue.clear()
                    self._bytes = 0
                    self._changed.notify_all()
                if events:
                    file.write(events)
                    flush_at = min(flush_at, time.monotonic() + self._flush_s)
                if closing:
                    file.close()
                elif asked > self._flushes or time.monotonic() >= flush_at:
                    file.flush()
                    flush_at = float("inf")
                with self._changed:
                    self._flushes = asked
                    self._changed.notify_all()
                if closing:
                    return
        except Exception as error:  # noqa: BLE001 - a client of an object store raises its own
            with self._changed:
                self._error = self._storage_error(error)
                self._queue.clear()
                self._changed.notify_all()
            log.error("%s; no more of them are written", self._error)

    def _storage_error(self, error: Exception) -> RopewalkError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StorageError(
            f"event files cannot be written to {self.logdir}: {reason}; make it writable, or name "
            "another folder",
            path=self.logdir,
        )


def _close_all() -> None:
    for writer in list(_open):
        try:
            writer.close()
        except RopewalkError as error:
            log.debug("%s", error)  # it is in the log already
