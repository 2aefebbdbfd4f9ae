"""News of a job for all pages that are open: asked for once, sent to each.

Nobody is asked while no page is open. A page that does not read its news is let go; it asks again.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from .history_file import past_json
from .watched_job import WatchedJob

MOST_PAGES = 64
_BEHIND = 8  # news that a page may not have read


def event(name: str, data: object) -> bytes:
    """Write a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Feed:
    """The news of one job. Used in one event loop.

    Args:
        job: The job.

    Attributes:
        every_s: Time between two looks at the job. Unit: seconds.
    """

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        self.every_s = 1.0
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._since = 0.0
        self._last: bytes | None = None

    @property
    def pages(self) -> int:
        """Number of connections that hear news."""
        return len(self._pages)

    @property
    def is_full(self) -> bool:
        """Whether no other page can be served."""
        return len(self._pages) >= MOST_PAGES

    @property
    def is_looking(self) -> bool:
        """Whether the job is asked."""
        return self._looking is not None and not self._looking.done()

    async def news(self) -> AsyncIterator[bytes]:
        """Yield events until the page is gone, or the feed is closed."""
        page: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self._pages.add(page)
        if not self.is_looking:
            self._looking = asyncio.create_task(self._look())
        elif self._last is not None:
            yield self._last
        try:
            while (item := await page.get()) is not None:
                yield item
        finally:
            self._pages.discard(page)

    def close(self) -> None:
        """Let all pages go."""
        for page in list(self._pages):
            self._let_go(page)
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        self._since = 0.0
        while self._pages:
            seen = await asyncio.to_thread(self._job.look)
            self._last = event("job", seen.as_json())
            self._send(self._last)
            if samples := await asyncio.to_thread(self._new_samples):
                self._send(event("samples", samples))
            await asyncio.sleep(self.every_s)

    def _new_samples(self) -> dict[str, Any]:
        """Take the samples since the last look; a page that comes has asked for those before."""
        past = self._job.history(self._since)
        is_first, samples = not self._since, past.samples
        self._since = samples[-1].at if samples else self._since
        # An event without a sample after it comes again with the next one.
        return {} if not samples or is_first else past_json(past)

    def _send(self, item: bytes) -> None:
        for page in list(self._pages):
            try:
                page.put_nowait(item)
            except asyncio.QueueFull:
                self._let_go(page)

    def _let_go(self, page: asyncio.Queue[bytes | None]) -> None:
        self._pages.discard(page)
        while not page.empty():
            page.get_nowait()
        page.put_nowait(None)
