"""Following the logs of a job's pods: a thread per pod, one bounded queue, no verdicts.

A stream that breaks is begun again, and says so (``pod_log.py``). Whether the job has succeeded is
asked of its objects (``operations.observe``), never concluded from a log that ends.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...core.errors import RopewalkError, said_of
from ...core.process.threads import new_thread
from .answers import RefusedRequestError
from .client import KubernetesApi
from .log_lines import LogCursor, LogLine
from .names import selector_text
from .operations import observe
from .pod_log import PodLogReader, Said, container_of, pod_name, said_of_line, task_of, uid_of
from .watching import ObjectFollower

Json = dict[str, Any]

_MOST_LINES = 10_000  # between the readers and who prints
_LEAVE_S = 2.0


def read_logs(
    api: KubernetesApi, name: str, wanted: Callable[[str], bool], tail: int
) -> Iterator[Said]:
    """Read the logs as they are now, pod by pod, oldest first within a task.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        wanted: Whether a task's log is wanted.
        tail: Number of lines at the end of each; -1: all.
    """
    pods = api.list_all("Pod", selector_text(name)).items
    pods.sort(key=lambda pod: (task_of(pod), pod["metadata"].get("creationTimestamp", "")))
    for pod in pods:
        task = task_of(pod)
        if not wanted(task):
            continue
        cursor = LogCursor()
        try:
            for line in _lines(api.log(pod_name(pod), container_of(pod), tail=tail), cursor):
                yield said_of_line(task, line)
        except RefusedRequestError as error:
            yield Said(task, f"no log: {error.refusal.message}", is_note=True)


def _lines(chunks: Iterable[bytes], cursor: LogCursor) -> Iterator[LogLine]:
    cursor.begin()
    for chunk in chunks:
        yield from cursor.feed(chunk)
    yield from cursor.end()


class LogFollower:
    """Follows the logs of all wanted pods of a job, also of those that come later.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        wanted: Whether a task's log is wanted.
        tail: Number of lines to show that exist already; -1: all.
        watch_s: Time that a watch of the pods lasts. Unit: seconds.
    """

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        wanted: Callable[[str], bool],
        tail: int = -1,
        watch_s: int = 5,
    ) -> None:
        self._api = api
        self._name = name
        self._wanted = wanted
        self._tail = tail
        self._pods = ObjectFollower(api, "Pod", selector_text(name), watch_s)
        self._out: queue.Queue[Said | RopewalkError | None] = queue.Queue(_MOST_LINES)
        self._readers: dict[str, PodLogReader] = {}
        self._over = threading.Event()
        self._stopped = threading.Event()

    def lines(self) -> Iterator[Said]:
        """Yield lines as they come, until the job is over and every log has been read to its end.

        Raises:
            RopewalkError: The API refuses, or has not answered for minutes.
        """
        watcher = new_thread("pods", self._watch, failed=self._failed)
        watcher.start()
        try:
            while True:
                said = self._out.get()
                if isinstance(said, RopewalkError):
                    raise said
                if said is None:
                    return
                yield said
        finally:
            self._stop()
            watcher.join(_LEAVE_S)

    def _stop(self) -> None:
        self._stopped.set()
        self._pods.stop()
        for reader in list(self._readers.values()):
            reader.cancel()
        with contextlib.suppress(queue.Empty):  # a reader may wait for room
            while True:
                self._out.get_nowait()

    def _watch(self) -> None:
        """Begin readers for new pods, in its own thread, and find out when the job is over."""
        end: RopewalkError | None = None
        try:
            for changes in self._pods.rounds():
                for change in changes:
                    self._begin(change.object)
                # When a pod has ended, and at every round: the Jobs know a little later.
                if not changes and observe(
                    self._api, self._name, list(self._pods.objects.values())
                ).phase in ("Done", "Failed", "Absent"):
                    break
            self._over.set()
            for reader in self._readers.values():
                reader.finish()
            for reader in self._readers.values():
                while reader.thread.is_alive() and not self._stopped.is_set():
                    reader.thread.join(0.2)
        except RopewalkError as error:
            end = error
        self._put(end)

    def _failed(self, error: BaseException) -> None:
        self._put(RopewalkError(f"the pods are not watched any more: {said_of(error)}"))

    def _begin(self, pod: Json) -> None:
        task = task_of(pod)
        if uid_of(pod) in self._readers or not self._wanted(task):
            return
        if (pod.get("status") or {}).get("phase") in (None, "Pending"):
            return  # it has no log yet
        reader = PodLogReader(self._api, pod, task, self._put, self._tail)
        self._readers[uid_of(pod)] = reader
        reader.thread.start()

    def _put(self, said: "Said | RopewalkError | None") -> None:
        while not self._stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._out.put(said, timeout=0.2)
                return
