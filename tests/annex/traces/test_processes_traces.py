"""A job of processes: its steps arrive at a collector, and in a file without one."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from helpers import processes
from helpers.local_run import LivePids, LocalRun
from helpers.waiting import scaled, wait_until
from ropewalk.core.spans import CATALOGUE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

TRAIN = """
import time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(4, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.01)

def step():
    optimizer.apply_gradients([(w.read_value() - 1, w)])

print("trains")
while True:
    strategy.run(step)
    time.sleep(0.01)
"""


class Collector(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP, on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.spans: list[tuple[str, Span]] = []  # with the task

    def traces(self) -> dict[bytes, list[tuple[str, Span]]]:
        """Spans by trace."""
        found: dict[bytes, list[tuple[str, Span]]] = {}
        for task, span in list(self.spans):
            found.setdefault(span.trace_id, []).append((task, span))
        return found


class _Request(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for of_task in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in of_task.resource.attributes}
            self.server.spans += [
                (about["service.instance.id"], span)
                for scope in of_task.scope_spans
                for span in scope.spans
            ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def job(
    tmp_path: Path, live_pids: LivePids, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalRun]:
    port = collector.server_address[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ["--workers", "1", "--ps", "1", "--trace", "0.2", "--save-every-s", "1"]
    running = LocalRun(tmp_path, live_pids, [*flags, "train.py"])
    yield running
    running.launcher.send_signal(signal.SIGINT)
    running.launcher.send_signal(signal.SIGINT)
    running.launcher.wait(scaled(60))


def test_a_step_is_one_trace_over_worker_ps_and_chief(
    job: LocalRun, collector: Collector, tmp_path: Path
) -> None:
    job.until_said("trains", 2)

    def joined() -> bool:
        return any(
            {task for task, _ in spans} == {"worker:0", "ps:0", "chief:0"}
            for spans in collector.traces().values()
        )

    wait_until(joined, 60, "a trace of all three tasks")
    wait_until(lambda: _saves(collector), 60, "a save with the part of the ps")
    for spans in collector.traces().values():
        ids = {span.span_id: span for _, span in spans}
        for _, span in spans:
            assert span.name in CATALOGUE
            parent = ids.get(span.parent_span_id)
            if parent is not None and span.kind == Span.SPAN_KIND_SERVER:
                assert parent.kind in (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL)
    _check_file(tmp_path)


def _saves(collector: Collector) -> bool:
    saves = [spans for spans in collector.traces().values() if spans[0][1].name == "checkpoint"]
    return any({task for task, _ in spans} == {"chief:0", "ps:0"} for spans in saves)


def _check_file(folder: Path) -> None:
    """Trace the next steps into a file: what a ps does lies in the push that waits for it."""
    command = [*processes.ROPEWALK, "trace", "model", "-o", "step.json", "-n", "2"]
    code, said, errors = processes.run(
        command, timeout_s=scaled(60), cwd=folder, env={**os.environ}
    )
    assert code == 0, errors
    assert said.startswith("step.json: 4 steps, "), said
    assert len(said.splitlines()) == 1, said
    written = json.loads((folder / "step.json").read_text())
    assert written["displayTimeUnit"] == "ms"
    events = written["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(names.values()) == ["chief:0", "worker:0", "ps:0"]
    shown = {e["args"]["span"]: e for e in events if e["ph"] == "X"}
    served = [e for e in shown.values() if e["cat"] == "server" and e["name"] == "push"]
    assert {names[e["pid"]] for e in served} == {"ps:0"}
    assert len(served) >= 4
    for each in served:
        exchange = shown[each["args"]["parent"]]
        assert exchange["name"] == "push"
        assert exchange["cat"] == "client"
        assert exchange["ts"] - _SKEW_US <= each["ts"]
        assert each["ts"] + each["dur"] <= exchange["ts"] + exchange["dur"] + _SKEW_US
        inside = [e for e in shown.values() if e["args"]["parent"] == each["args"]["span"]]
        assert {"lock", "apply", "answer"} <= {e["name"] for e in inside}
    arrows = [e["id"] for e in events if e["ph"] == "f"]
    assert set(arrows) <= {e["id"] for e in events if e["ph"] == "s"} | set(shown)


_SKEW_US = 200
"""Error of two processes' clocks here: each is read beside the system's when a step begins, three
times, and the reading that took the least time counts."""
