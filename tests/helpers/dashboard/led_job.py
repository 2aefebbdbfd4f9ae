"""A job with a chief that serves it, whose tasks say what a test wants, and its page."""

import http.client
import http.cookies
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ropewalk.annexes.dashboard.feed import Feed
from ropewalk.annexes.dashboard.keeping import History
from ropewalk.annexes.dashboard.server import JobViews
from ropewalk.annexes.dashboard.serving import ServedPage
from ropewalk.annexes.dashboard.watched_cluster import WatchedCluster
from ropewalk.annexes.dashboard.watched_job import WatchedJob
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.core.report import TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.launch.found_job import FoundJob, JobAsker
from ropewalk.server.chief.server import ChiefServer

CHIEF, PS = TaskId("chief", 0), TaskId("ps", 0)
WORKERS = [TaskId("worker", 0), TaskId("worker", 1)]
SETTINGS = Settings(heartbeat_s=0.25, lease_s=3600.0, insecure=True)
T = 5.0


class LedJob:
    """A chief, two workers and a ps that nobody calls; nothing is trained."""

    settings = SETTINGS

    def __init__(self) -> None:
        expected = [(CHIEF, "c:1"), (PS, "p:1"), *((task, "") for task in WORKERS)]
        self.server = ChiefServer(CHIEF, expected, SETTINGS)
        self.server.start("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = ChiefClient(self.address, SETTINGS, Principal("driver"))
        self.tasks = [self.register(task) for task in (CHIEF, *WORKERS)]
        self.history = self.server.locked_job.part(History)

    def register(self, task: TaskId) -> Incarnation:
        """Have a task come."""
        return self.client.register(task, f"{task.short}", timeout_s=T)[0]

    def report(self, who: Incarnation, **report: Any) -> None:
        """Have a task report."""
        self.client.heartbeat(who, TaskReport(**report), timeout_s=T)

    def found(self) -> FoundJob:
        """The job as commands find it."""
        return FoundJob(self.client.status(timeout_s=T), self.address)

    def close(self) -> None:
        """End the chief."""
        self.client.close()
        self.server.stop(grace_s=0)


class Visitor:
    """One browser without scripts, at a page's address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie = ""

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Ask for a path: (status, headers, body)."""
        connection = http.client.HTTPConnection(self.address.partition("//")[2], timeout=30)
        try:
            connection.request(method, path, headers={"cookie": self.cookie})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def open(self, link: str) -> int:
        """Follow a link, and keep the cookie."""
        status, headers, _ = self.get(link.removeprefix(self.address))
        if "set-cookie" in headers:
            [morsel] = http.cookies.SimpleCookie(headers["set-cookie"]).values()
            self.cookie = f"{morsel.key}={morsel.value}"
        return status

    def json(self, path: str) -> Any:
        """Ask for JSON as a browser reads it: no NaN."""

        def refuse(text: str) -> float:
            raise ValueError(f"no JSON: {text}")

        status, _, body = self.get(path)
        assert status == 200
        return json.loads(body, parse_constant=refuse)

    def news(self, count: int) -> list[tuple[str, Any]]:
        """The first news of a page that opens."""
        connection = http.client.HTTPConnection(self.address.partition("//")[2], timeout=30)
        try:
            connection.request("GET", "/api/news", headers={"cookie": self.cookie})
            answer = connection.getresponse()
            found = list[tuple[str, Any]]()
            while len(found) < count:
                line = answer.readline().decode()
                if line.startswith("event: "):
                    found.append((line[7:].strip(), json.loads(answer.readline()[6:])))
            return found
        finally:
            connection.close()


class Served(Visitor):
    """The page of a job or a cluster, and one browser."""

    def __init__(self, shown: FoundJob | WatchedCluster, settings: Settings = SETTINGS) -> None:
        self.links: list[str] = []
        self.shown = (
            shown if isinstance(shown, WatchedCluster) else WatchedJob(shown, JobAsker(settings, T))
        )
        self.page = ServedPage(
            self.shown, settings, "127.0.0.1", 0, lambda _, link: self.links.append(link)
        )
        self.page.start()
        super().__init__(self.page.address)

    @property
    def feed(self) -> Feed:
        """News of its job."""
        assert isinstance(self.page.views, JobViews)
        return self.page.views.feed

    def close(self) -> None:
        """End it."""
        self.page.close()
        self.shown.close()


@contextmanager
def served(shown: FoundJob | WatchedCluster) -> Iterator[Served]:
    """Serve a page until the block ends."""
    page = Served(shown)
    try:
        yield page
    finally:
        page.close()
