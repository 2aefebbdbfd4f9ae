"""Spans to a collector, by OpenTelemetry's SDK: a queue of bounded length, sent in batches.

Spans are measured by the kernel and get their ids there; the SDK is given them as they are. It is
loaded where ``--trace`` is set, and nowhere else.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import entry_points

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ...core.errors import ConfigurationError
from ...core.process.events import event
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import read_environment
from ...core.spans import Span, SpanRole
from ...core.versions import package_version

log = logging.getLogger(__name__)

_KINDS = {
    SpanRole.INTERNAL: SpanKind.INTERNAL,
    SpanRole.CLIENT: SpanKind.CLIENT,
    SpanRole.SERVER: SpanKind.SERVER,
}
_FLAGS = TraceFlags(TraceFlags.SAMPLED)
_QUEUE = 2048  # spans that wait to be sent
_FLUSH_S = 2.0


def chosen_exporter() -> SpanExporter:
    """Make the exporter that OpenTelemetry's own variables choose: OTLP over HTTP, unless they do.

    Raises:
        ConfigurationError: It is not installed.
    """
    name = read_environment("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "otlp":
        protocol = (
            read_environment("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or read_environment("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "http/protobuf"
        )
        name = f"otlp_proto_{protocol.partition('/')[0]}"
    for found in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter: SpanExporter = found.load()()
        return exporter
    raise ConfigurationError(
        f"OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL choose the exporter {name!r:.80}, "
        "which is not installed here: http/protobuf comes with ropewalk[otel], grpc with "
        "opentelemetry-exporter-otlp-proto-grpc"
    )


class _Counted(SpanExporter):
    """Counts the spans that have left the queue, sent or not.

    Args:
        exporter: Sends them.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """End."""
        self._exporter.shutdown()


class SpanExport:
    """Sends spans in batches, from a thread of the SDK's. Thread-safe.

    Args:
        exporter: Sends a batch.
        task: Short name of the task.
        job: Id of the job; empty: it has none.
        most: Spans that may wait; what comes beyond is dropped, and counted.

    Attributes:
        dropped: Spans that were dropped because too many waited.
    """

    def __init__(
        self, exporter: SpanExporter, task: str, job: str = "", most: int = _QUEUE
    ) -> None:
        self._counted = _Counted(exporter)
        batch = min(512, most)
        self._processor = BatchSpanProcessor(self._counted, most, max_export_batch_size=batch)
        about = {"service.instance.id": task, "host.name": socket.gethostname()}
        about |= {"ropewalk.job": job} if job else {}
        if not read_environment("OTEL_SERVICE_NAME"):
            about["service.name"] = "ropewalk"
        self._resource = Resource.create({**about, "process.pid": os.getpid()})
        self._scope = InstrumentationScope("ropewalk", package_version())
        self._most = most
        self._lock = threading.Lock()
        self._given = 0
        self.dropped = 0
        self._told = 0

    @property
    def lost(self) -> int:
        """Number of spans that no collector has: dropped, or refused by it."""
        return self.dropped + self._counted.failed

    def take(self, span: Span) -> None:
        """Put a span into the queue."""
        with self._lock:
            if is_full := self._given - self._counted.taken >= self._most:
                self.dropped += 1
            else:
                self._given += 1
        if not is_full:
            self._processor.on_end(self._readable(span))
        self._tell()

    def _tell(self, *, at_end: bool = False) -> None:
        """Log how many spans are lost, whenever they have become ten times as many."""
        lost = self.lost
        if lost and (lost >= 10 * self._told or (at_end and lost > self._told)):
            self._told = lost
            log.warning(
                "%d spans of traces were not sent: %d were too many at a time, %d the collector "
                "did not take; is it there (OTEL_EXPORTER_OTLP_ENDPOINT), or is --trace too large?",
                lost,
                self.dropped,
                self._counted.failed,
                extra=event("spans.lost", dropped=self.dropped, failed=self._counted.failed),
            )

    def _readable(self, span: Span) -> ReadableSpan:
        trace = int.from_bytes(span.context.trace)
        own = SpanContext(trace, int.from_bytes(span.context.span), False, _FLAGS)
        is_remote = span.kind is SpanRole.SERVER
        parent = SpanContext(trace, int.from_bytes(span.parent), is_remote, _FLAGS)
        fields = {f"ropewalk.{key}": value for key, value in span.fields.items()}
        return ReadableSpan(
            span.name,
            own,
            parent if span.parent else None,
            self._resource,
            {"ropewalk.task": span.task, **fields},
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR if "error" in span.fields else StatusCode.UNSET),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def flush(self, timeout_s: float = _FLUSH_S) -> None:
        """Send what waits, for so long at most: the exporter may try for longer."""
        flush = new_thread("spans", self._processor.force_flush, failed=nobody_waits)
        flush.start()
        flush.join(timeout_s)
        self._tell()

    def close(self) -> None:
        """Send what waits, and say what was lost."""
        self.flush()
        self._tell(at_end=True)
