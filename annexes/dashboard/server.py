"""The page over HTTP: read only, behind a link, and no browser is sent to any other host."""

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import LimitExceededError, RopewalkError
from .doors import Doors
from .feed import Feed
from .folder_views import checkpoints, log_lines
from .history_file import past_json
from .watched_cluster import MOST_JOBS, WatchedCluster
from .watched_job import WatchedJob

log = logging.getLogger(__name__)

_STATIC = Path(__file__).with_name("static")
_COOKIE = "ropewalk-dashboard-{port}"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_STORE = {"cache-control": "no-store"}


class _Guard:
    """Lets in who has a cookie, and puts headers on every answer.

    Args:
        app: The application that is guarded.
        doors: Knows the cookies.
        cookie: Name of the cookie.
    """

    def __init__(self, app: ASGIApp, doors: Doors, cookie: str) -> None:
        self._app = app
        self._doors = doors
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        request = Request(scope)
        may_see = self._doors.knows(request.cookies.get(self._cookie, ""))
        app = self._app if may_see or scope["path"] == "/open" else _REFUSAL
        await app(scope, receive, with_headers)


_REFUSAL = PlainTextResponse(
    "This page needs the link that was printed when it was started. A link works once; another one "
    "is printed when it has been used.\n",
    403,
    _NO_STORE,
)


class JobViews:
    """The answers of the page about one job: its index, and all that this asks for.

    Args:
        job: The job.
    """

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        self.feed = Feed(job)
        self.routes = [
            Route("/", _file("index.html")),
            Route("/api/job", _in_thread(self._job_now)),
            Route("/api/history", _in_thread(self._history)),
            Route("/api/news", self._news),
            Route("/api/logs", _in_thread(self._logs)),
            Route("/api/checkpoints", _in_thread(self._checkpoints)),
        ]
        self.app: ASGIApp = Router(self.routes)

    def close(self) -> None:
        """Let the pages go that are open."""
        self.feed.close()

    def _job_now(self, _: Request) -> Any:
        return self._job.look().as_json()

    def _history(self, _: Request) -> Any:
        return past_json(self._job.history())

    def _logs(self, request: Request) -> Any:
        return log_lines(self._job.folder, request.query_params.get("after", ""))

    def _checkpoints(self, _: Request) -> Any:
        return {"folder": self._job.folder, "checkpoints": checkpoints(self._job.folder)}

    async def _news(self, _: Request) -> Response:
        if self.feed.is_full:
            return PlainTextResponse("too many pages are open; close some\n", 503, _NO_STORE)
        return StreamingResponse(self.feed.news(), 200, _NO_STORE, "text/event-stream")


class ClusterViews:
    """The answers of the page about a cluster: the list of its jobs, and each below its name.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: WatchedCluster) -> None:
        self._cluster = cluster
        self._opening = anyio.Lock()
        self._open: dict[str, JobViews] = {}
        self.routes = [
            Route("/", _file("jobs.html")),
            Route("/api/jobs", _in_thread(lambda _: cluster.look())),
            Mount("/job/{job}", self._of_job),
        ]

    def close(self) -> None:
        """Let the pages go that are open."""
        for views in self._open.values():
            views.close()

    async def _of_job(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["job"]
        try:
            views = self._open.get(name) or await self._open_job(name)
        except RopewalkError as error:
            app: ASGIApp = PlainTextResponse(f"{error.message}\n", 404, _NO_STORE)
        else:
            app = views.app
        await app(scope, receive, send)

    async def _open_job(self, name: str) -> JobViews:
        async with self._opening:  # a page that opens asks for several things at once
            if name not in self._open:
                await self._make_room()
                self._open[name] = JobViews(
                    await anyio.to_thread.run_sync(self._cluster.open, name)
                )
            return self._open[name]

    async def _make_room(self) -> None:
        """Close the oldest jobs that no page shows, if there are as many as can be."""
        idle = [name for name, views in self._open.items() if not views.feed.is_looking]
        for name in idle[: max(0, len(self._open) - MOST_JOBS + 1)]:
            self._open.pop(name).close()
            await anyio.to_thread.run_sync(self._cluster.close_job, name)
        if len(self._open) >= MOST_JOBS:
            raise LimitExceededError(
                f"pages of {MOST_JOBS} jobs are open, as many as can be; close one of them"
            )


class Page:
    """The page of a job or a cluster, as an application of ASGI.

    Args:
        views: The answers about what it shows.
        port: Port at which it is served, which names its cookie: browsers do not tell ports apart.
        on_open: Called with the next link's path when a link was used.
    """

    def __init__(
        self, views: JobViews | ClusterViews, port: int, on_open: Callable[[str], None]
    ) -> None:
        self.views = views
        self._on_open = on_open
        self._cookie = _COOKIE.format(port=port)
        self.doors = Doors()
        routes = [
            Route("/open", self._open),
            Mount("/static", StaticFiles(directory=_STATIC)),
            *views.routes,
        ]
        guard = Middleware(_Guard, doors=self.doors, cookie=self._cookie)
        self.app = Starlette(routes=routes, middleware=[guard])

    @property
    def link(self) -> str:
        """Path that opens the page in one browser."""
        return f"/open?token={self.doors.token}"

    async def _open(self, request: Request) -> Response:
        if self.doors.knows(request.cookies.get(self._cookie, "")):
            return RedirectResponse("/", 303, _NO_STORE)
        cookie = self.doors.open(request.query_params.get("token", ""))
        if cookie is None:
            return _REFUSAL
        self._on_open(self.link)
        answer = RedirectResponse("/", 303, _NO_STORE)
        secure = request.url.scheme == "https"
        answer.set_cookie(self._cookie, cookie, httponly=True, samesite="strict", secure=secure)
        return answer


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of a file of ours."""

    async def endpoint(_: Request) -> Response:
        return FileResponse(_STATIC / name, headers=_NO_STORE)

    return endpoint


def _in_thread(answer: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of a function that may wait for the chief."""

    async def endpoint(request: Request) -> Response:
        data = await anyio.to_thread.run_sync(answer, request)
        text = json.dumps(data, separators=(",", ":"))
        # Numbers that are none, which a browser does not read, are written as texts before.
        return Response(text, 200, _NO_STORE, "application/json")

    return endpoint


class _Server(uvicorn.Server):  # type: ignore[misc]
    """A server whose end does not wait for pages that are open."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: Any = None) -> None:
        """Let all pages go, then end."""
        self._page.views.close()
        await super().shutdown(sockets)


def new_server(page: Page, certificate: tuple[str, str] | None) -> uvicorn.Server:
    """Make the server of a page.

    Args:
        page: The page.
        certificate: Files of a certificate and its key; None: it serves without encryption.
    """
    cert, key = certificate or (None, None)
    config = uvicorn.Config(
        page.app,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
        ssl_certfile=cert,
        ssl_keyfile=key,
        ws="none",
    )
    return _Server(config, page)
