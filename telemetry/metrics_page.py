"""The page that Prometheus reads, written by its own library, and the answer to a request for it.

Collecting takes some locks, and a moment of the interpreter. Requests within a second get the same
page, so that endless requests cost the task little; and if collecting does not end, only one thread
waits for it.
"""

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from math import isinf
from typing import Any, cast
from urllib.parse import urlsplit

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from ..core.clock import Clock, SystemClock
from .catalogue import Distribution, Sample

log = logging.getLogger(__name__)

_KEEP_S = 1.0
_WAIT_S = 2.0

PATH = "/metrics"

Collect = Callable[[], Iterable[Sample | Distribution]]

Read = Callable[[str], tuple[bytes, str]]
"""Makes the page and its content type for a value of ``Accept``; raises TimeoutError if there is
none for now.
"""


def families(samples: Iterable[Sample | Distribution]) -> list[Metric]:
    """Convert samples to the form of Prometheus' library; those with equal labels are added up."""
    sums: dict[str, tuple[Any, dict[tuple[str, ...], float]]] = {}
    histograms: dict[str, HistogramMetricFamily] = {}
    for sample in samples:
        if isinstance(sample, Distribution):
            _add_histogram(histograms, sample)
            continue
        metric = sample.metric
        _, values = sums.setdefault(metric.name, (metric, {}))
        values[sample.labels] = values.get(sample.labels, 0.0) + float(sample.value)
    metrics: list[Metric] = []
    for metric, values in sums.values():
        kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric(list(labels), value)
        metrics.append(family)
    return [*metrics, *histograms.values()]


def _add_histogram(histograms: dict[str, HistogramMetricFamily], sample: Distribution) -> None:
    metric = sample.metric
    family = histograms.setdefault(
        metric.name, HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    )
    buckets = [("+Inf" if isinf(bound) else f"{bound:g}", count) for bound, count in sample.buckets]
    family.add_metric(list(sample.labels), buckets, sample.total)


class MetricsPage:
    """Renders the metrics of a task. Thread-safe.

    Args:
        collect: Reads the task's counters. Must not call other tasks.
        others: More metrics: those of the process, and those that the program has registered with
            Prometheus' library.
        clock: Clock, replaced in tests.
    """

    def __init__(
        self, collect: Collect, others: CollectorRegistry = REGISTRY, clock: Clock | None = None
    ) -> None:
        self._collect = collect
        self._others = others
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._families: list[Metric] = []
        self._until = -1.0

    def render(self, accept: str) -> tuple[bytes, str]:
        """Render the counters; returns (the page, its content type).

        Args:
            accept: The value of HTTP's header ``Accept``: plain text or OpenMetrics.

        Raises:
            TimeoutError: Another thread has been collecting for long.
        """
        if not self._lock.acquire(timeout=_WAIT_S):
            raise TimeoutError(f"the counters have not been read for {_WAIT_S:g} s")
        try:
            if self._clock.now() >= self._until:
                self._families = [*families(self._collect()), *self._of_others()]
                self._until = self._clock.now() + _KEEP_S
            families_now = self._families
        finally:
            self._lock.release()
        encode, content_type = choose_encoder(accept)
        return encode(_Page(families_now)), content_type

    def _of_others(self) -> list[Metric]:
        try:
            return list(self._others.collect())
        except Exception:  # from a collector of the program: ours are shown all the same
            log.warning("metrics that the program has registered cannot be read", exc_info=True)
            return []


class _Page:
    """A registry for the library's encoders."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


def answer_to(request: bytes, read: Read) -> bytes:
    """Answer a request.

    Args:
        request: Unparsed head of the request.
        read: Makes the page.
    """
    written = io.BytesIO()
    _Answer(cast("Any", (request, written, read)), ("", 0), cast("Any", None))
    return written.getvalue()


class _Answer(BaseHTTPRequestHandler):
    """An answer to one request, read from memory and written into memory: waiting is the port's."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ropewalk", ""

    def setup(self) -> None:
        request, self.wfile, self._read = cast("Any", self.request)
        self.rfile = io.BytesIO(request)

    def finish(self) -> None:
        """Do nothing: the port closes the connection."""

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        if urlsplit(self.path).path not in (PATH, "/"):
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        try:
            body, content_type = self._read(self.headers.get("Accept", ""))
        except TimeoutError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        log.debug(format, *args)
