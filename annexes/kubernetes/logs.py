"""The log of one pod: read to its end, through restarts and streams that break.

Logs are asked for by a pod's name, which a StatefulSet gives to the next pod too. A reader belongs
to one pod, by its uid, and looks after every stream that it opens whether that pod is still there.
"""

import contextlib
import hashlib
import queue
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ...core.errors import RopewalkError, said_of
from ...core.process.threads import new_thread
from ...launch.processes.process import last_version
from .api import KubernetesApi
from .names import COMPONENT, CONTAINER, selector_text
from .observing import ObjectFollower, observe
from .pods import containers, read_pod
from .refusals import RefusedRequestError, error_of
from .requests import ByteChunks

# -- The lines of a container's log, each once, however often the stream breaks. Pure -----------
# Every line comes behind its time. A stream that breaks off, maybe in the middle of a line, is
# begun again at a whole second before the last line that was heard, because the API knows no
# smaller unit. Lines of that overlap are recognised by their time and text, counted (the same
# line may have been written twice). Times alone would not do: two streams of one container are
# not in order.

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ?")
_OVERLAP_S = 1  # beyond the whole second
_MOST_REMEMBERED = 200_000  # beyond, lines may be shown twice; none is lost
_LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes:
        text: Text of the line without its time and end.
        time: Time as the API wrote it, to the second; empty: the line had none, so it is the
            kubelet's, which writes its errors into the stream with status 200
            (kubernetes/kubernetes#142258).
    """

    text: str
    time: str


class LogCursor:
    """Reads one log over several streams."""

    def __init__(self) -> None:
        self._rest = b""
        self._within = ""  # time of a line that was too long, and goes on
        self._newest: datetime | None = None
        self._recent: deque[tuple[datetime, bytes]] = deque()
        self._seen: Counter[bytes] = Counter()

    def begin(self) -> str:
        """Begin a stream; returns the time to ask for lines since, or empty: all of them."""
        self._rest, self._within = b"", ""  # a cut line comes again, whole
        since = self._since()
        while self._recent and since is not None and self._recent[0][0] < since:
            self._recent.popleft()
        self._seen = Counter(digest for _, digest in self._recent)
        return "" if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, chunk: bytes) -> list[LogLine]:
        """Take in a chunk; returns the new lines that are complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        taken = [self._take(raw) for raw in lines]
        if len(self._rest) > _LONGEST_LINE:
            within = self._within
            cut, self._rest = self._take(self._rest), b""
            taken.append(cut)
            self._within = cut.time if cut is not None else within
        return [line for line in taken if line is not None]

    def end(self) -> list[LogLine]:
        """End the log; returns a last line without an end."""
        raw, self._rest = self._rest, b""
        line = self._take(raw) if raw else None
        return [line] if line is not None else []

    def _take(self, raw: bytes) -> LogLine | None:
        match = _STAMP.match(raw)
        time, self._within = self._within, ""
        if match is None:
            return LogLine(raw.decode(errors="replace").rstrip("\r"), time)
        digest = hashlib.blake2b(raw, digest_size=12).digest()
        if self._seen[digest] > 0:
            self._seen[digest] -= 1
            return None
        zone = b"+00:00" if match[2] == b"Z" else match[2]
        at = datetime.fromisoformat((match[1] + zone).decode()).astimezone(UTC)
        self._newest = max(at, self._newest or at)
        self._recent.append((at, digest))
        self._forget()
        # A progress bar writes its line over and over; the last one is what a terminal would show.
        shown = last_version(raw[match.end() :])
        return LogLine(shown.decode(errors="replace"), at.isoformat())

    def _since(self) -> datetime | None:
        return None if self._newest is None else self._newest - timedelta(seconds=_OVERLAP_S)

    def _forget(self) -> None:
        """Forget what no stream will begin before, or is more than is remembered."""
        since = self._since()
        while len(self._recent) > _MOST_REMEMBERED or (
            since is not None and len(self._recent) > 1 and self._recent[0][0] < since
        ):
            self._recent.popleft()


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
        self._api.clock.wait(self._finish, refusal.wait_s(self._failures))
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
    return sum(each.restarts for each in containers(pod))


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
