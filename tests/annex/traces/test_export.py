"""Spans to a collector: as they are, in a bounded queue, and what is lost is counted and said."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from helpers.waiting import wait_until
from ropewalk.annexes.traces.export import SpanExport, chosen_exporter
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.spans import Span, SpanRole, new_context


def a_span(kind: SpanRole = SpanRole.SERVER, **fields: str) -> Span:
    place = new_context()
    return Span("push", place, place.child().span, 1_000, 2_000, kind, "ps:0", fields)


class Stuck(SpanExporter):
    """A collector that does not answer until it is told to."""

    def __init__(self) -> None:
        self.go_on, self.is_called = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_called.set()
        self.go_on.wait(60)
        return SpanExportResult.FAILURE


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    exporter = Stuck()
    yield exporter
    exporter.go_on.set()


def test_a_span_arrives_with_its_ids_times_and_fields() -> None:
    memory = InMemorySpanExporter()
    export = SpanExport(memory, "ps:0", "job-7")
    span = a_span(peer="worker:1", error="OSError")
    export.take(span)
    export.close()
    [seen] = memory.get_finished_spans()
    assert (seen.name, seen.start_time, seen.end_time) == ("push", 1_000, 2_000)
    assert seen.context.trace_id.to_bytes(16) == span.context.trace
    assert seen.context.span_id.to_bytes(8) == span.context.span
    assert seen.parent is not None
    assert (seen.parent.span_id.to_bytes(8), seen.parent.is_remote) == (span.parent, True)
    assert seen.kind is SpanKind.SERVER
    assert seen.status.status_code is StatusCode.ERROR
    assert dict(seen.attributes or {}) == {
        "ropewalk.task": "ps:0", "ropewalk.peer": "worker:1", "ropewalk.error": "OSError"
    }  # fmt: skip
    about = dict(seen.resource.attributes)
    assert about["service.name"] == "ropewalk"
    assert (about["service.instance.id"], about["ropewalk.job"]) == ("ps:0", "job-7")


def test_what_is_beyond_the_queue_is_dropped_counted_and_said_at_powers_of_ten(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    export = SpanExport(stuck, "ps:0", most=4)
    with caplog.at_level(logging.WARNING, "ropewalk"):
        for _ in range(4):  # a whole batch: it leaves the queue
            export.take(a_span())
        assert stuck.is_called.wait(60)
        for _ in range(4):
            export.take(a_span())
        assert export.dropped == 0
        for _ in range(15):
            export.take(a_span())
        assert export.dropped == export.lost == 15
    said = [line.getMessage().split()[0] for line in caplog.records]
    assert said == ["1", "10"]


def test_what_a_collector_does_not_take_is_said_at_the_end(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    stuck.go_on.set()
    export = SpanExport(stuck, "ps:0")
    with caplog.at_level(logging.WARNING, "ropewalk"):
        export.take(a_span())
        export.close()
        wait_until(lambda: export.lost == 1, 60, "the batch to fail")
        export.close()
    assert "1 the collector did not take" in caplog.text


def test_nobody_waits_for_a_collector_that_does_not_answer(stuck: Stuck) -> None:
    export = SpanExport(stuck, "ps:0")
    export.take(a_span())
    export.flush(0.01)
    assert stuck.is_called.wait(60)
    assert not stuck.go_on.is_set()


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, OTLPSpanExporter),
        ({"OTEL_TRACES_EXPORTER": "console"}, ConsoleSpanExporter),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, OTLPSpanExporter),
    ],
    ids=["none", "console", "protocol"],
)
def test_the_exporter_is_chosen_by_its_own_variables(
    variables: dict[str, str], kind: type[SpanExporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert type(chosen_exporter()) is kind


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin-of-old")
    with pytest.raises(ConfigurationError, match="zipkin-of-old"):
        chosen_exporter()


@pytest.mark.parametrize(("share", "loads"), [("0", "False"), ("0.01", "True")])
def test_opentelemetry_is_loaded_where_steps_are_traced_and_nowhere_else(
    share: str, loads: str
) -> None:
    program = (
        "import sys\n"
        "from ropewalk.cluster.resolvers.resolved import ResolvedTask\n"
        "from ropewalk.cluster.spec import ClusterSpec\n"
        "from ropewalk.core.settings import Settings\n"
        "from ropewalk.core.task import TaskId\n"
        "from ropewalk.worker.process.surroundings import begin_task_process\n"
        "spec = ClusterSpec({'ps': ['127.0.0.1:1'], 'chief': ['127.0.0.1:2']})\n"
        "task = ResolvedTask(TaskId('ps', 0), spec, TaskId('chief', 0), '127.0.0.1:2')\n"
        f"begin_task_process(task, Settings(trace={share}))\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == loads
