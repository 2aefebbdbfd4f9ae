"""The log of one pod: read to its end, through restarts and streams that break.

Logs are asked for by a pod's name, which a StatefulSet gives to the next pod too. A reader belongs
to one pod, by its uid, and looks after every stream that it opens whether that pod is still there.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...cluster.resolvers.pods import read_pod
from ...core.errors import RopewalkError, said_of
from ...core.process.threads import new_thread
from .answers import ByteChunks, RefusedRequestError
from .client import KubernetesApi
from .explaining import error_of
from .log_lines import LogCursor, LogLine
from .names import COMPONENT, CONTAINER
from .retrying import wait_before

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A text to print.

    Attributes:
        task: The task it comes from, as ``worker:1``; empty: the job.
        text: A line.
        is_note: Whether it comes from this command, not from the task.
    """

    task: str
    text: str
    is_note: bool = False


def task_of(pod: Json) -> str:
    """Name ``worker:1`` of a pod; its own name if that is not known."""
    read = read_pod(pod)
    component = read.labels.get(COMPONENT, "")
    return f"{component}:{read.index}" if component and read.index is not None else read.name


def said_of_line(task: str, line: LogLine) -> Said:
    """Make a line of a task, or of the kubelet that should have read it."""
    if line.time:
        return Said(task, line.text)
    return Said(task, f"its log cannot be read: {line.text}", is_note=True)


class _ReplacedError(Exception):
    """The stream is another pod's, which has the name now."""


class PodLogReader:
    """Reads the log of one pod's container to its end, through restarts and broken streams.

    Args:
        api: The Kubernetes API.
        pod: The pod.
        task: Task of the pod.
        put: Called with each line, from the reader's thread; may wait.
        tail: Number of lines to show that exist already; -1: all.

    Attributes:
        thread: Reads; to be started by the caller.
    """

    def __init__(
        self,
        api: KubernetesApi,
        pod: Json,
        task: str,
        put: Callable[[Said], None],
        tail: int,
    ) -> None:
        self.thread = new_thread(
            f"log of {task}",
            self._run,
            failed=lambda error: self._note(f"its log is not read any more: {said_of(error)}"),
        )
        self._api = api
        self._pod = pod_name(pod)
        self._uid = uid_of(pod)
        self._container = container_of(pod)
        self._task = task
        self._put = put
        self._tail = tail
        self._cursor = LogCursor()
        self._restarts = _restarts(pod)
        self._failures = 0
        self._last_note = ""
        self._finish = threading.Event()
        self._cancelled = threading.Event()
        self._chunks: ByteChunks | None = None

    def cancel(self) -> None:
        """End at once."""
        self._cancelled.set()
        self.finish()

    def finish(self) -> None:
        """Read what there is, and end: the job is over."""
        self._finish.set()
        chunks = self._chunks
        if chunks is not None:
            chunks.cancel()

    def _run(self) -> None:
        """Read until the container has ended for good, or :meth:`finish`."""
        try:
            while not self._finish.is_set() and self._has_more():
                try:
                    self._read(follow=True)
                    self._failures = 0
                except RefusedRequestError as error:
                    if not self._go_on(error):
                        return
            if not self._cancelled.is_set():
                # Once more without following: it ends where the log ends, also within a line.
                self._read(follow=False)
                self._say(self._cursor.end())
        except _ReplacedError:
            self._note("its pod was replaced; the next one is followed")
        except RefusedRequestError as error:
            if not error.refusal.is_missing:  # else its stream was read until the pod was gone
                self._note(f"the end of its log is not known: {error.refusal.words}")
        except RopewalkError as error:
            self._note(error.message)

    def _has_more(self) -> bool:
        """Return whether the container may say more. One that was restarted has its end read
        first.
        """
        if self._chunks is None:
            return True
        pod = self._own_pod()
        if pod is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return False
        restarts = _restarts(pod)
        if restarts > self._restarts:
            self._restarts = restarts
            self._note("was restarted")
            with contextlib.suppress(RefusedRequestError):  # the kubelet keeps one, for a while
                self._read(follow=False, previous=True)
                self._say(self._cursor.end())
        elif not self._finish.is_set():
            self._api.clock.wait(self._finish, min(0.1 * 2.0**self._failures, 5.0))
        return True

    def _own_pod(self) -> Json | None:
        """Read the pod as it is now; None: it is gone.

        Raises:
            _ReplacedError: Another pod has its name.
        """
        pod = self._api.get("Pod", self._pod)
        if pod is not None and uid_of(pod) != self._uid:
            raise _ReplacedError
        return pod

    def _read(self, *, follow: bool, previous: bool = False) -> None:
        since = self._cursor.begin()
        tail = self._tail if not since else -1
        self._chunks = self._api.log(
            self._pod, self._container, since=since, follow=follow, previous=previous, tail=tail
        )
        if follow and self._finish.is_set():
            return
        try:
            self._own_pod()  # a name never goes back to the pod that had it
        except _ReplacedError:
            self._chunks.cancel()
            raise
        for chunk in self._chunks:
            self._failures = 0
            self._say(self._cursor.feed(chunk))

    def _go_on(self, error: RefusedRequestError) -> bool:
        """Decide whether to try again after an error; waits meanwhile."""
        refusal = error.refusal
        if self._finish.is_set():
            return not self._cancelled.is_set()
        waiting = refusal.status == 400  # "container is waiting to start"
        if refusal.is_missing:  # the pod is gone; what its stream said was read
            return False
        if not (refusal.is_retried or waiting):
            self._note(error_of(refusal, f"log of {self._pod}", self._api.where).message)
            return False
        if not waiting and self._failures == 0:
            self._note(f"its log broke off ({refusal.message[:100]}); it is read on from there")
        self._api.clock.wait(self._finish, wait_before(refusal, self._failures))
        self._failures = min(self._failures + 1, 6)
        return True

    def _say(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            said = said_of_line(self._task, line)
            if said.is_note:
                self._note(said.text)
            else:
                self._put(said)

    def _note(self, text: str) -> None:
        if text != self._last_note:  # the kubelet repeats itself at every try
            self._last_note = text
            self._put(Said(self._task, text, is_note=True))


def pod_name(pod: Json) -> str:
    """Return the name of a pod."""
    return str(pod["metadata"]["name"])


def uid_of(pod: Json) -> str:
    """Return the uid of a pod, which tells it from the next pod of its name."""
    return str(pod["metadata"].get("uid") or pod_name(pod))


def container_of(pod: Json) -> str:
    """Find the task's container: ours by name, else the first."""
    names = [each["name"] for each in pod.get("spec", {}).get("containers") or []]
    return CONTAINER if CONTAINER in names or not names else str(names[0])


def _restarts(pod: Json) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return sum(int(each.get("restartCount", 0)) for each in statuses)
