"""The port that Prometheus reads: what it says, and what strangers cannot do to it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import AddressInUseError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.host import MetricsPort
from ropewalk.net.this_machine import free_ports
from ropewalk.server.ps.server import PsServer
from ropewalk.telemetry.catalogue import CATALOGUE, REPORTED, Sample
from ropewalk.telemetry.metrics_page import Collect, MetricsPage

TASK = TaskId("worker", 0)

STEPS = CATALOGUE["steps_total"]


@contextmanager
def serving(collect: Collect) -> Iterator[int]:
    """A port with these samples; its number."""
    [number] = free_ports(1)
    port = MetricsPort(TASK, "127.0.0.1:1", Settings(metrics_port=number), collect)
    port.start()
    try:
        yield number
    finally:
        port.stop()


def get(port: int, path: str = "/metrics", accept: str = "") -> tuple[str, str]:
    """(the page, its content type)."""
    connection = HTTPConnection("127.0.0.1", port, timeout=scaled(10))
    with closing(connection):
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        page = answer.read().decode()
        assert answer.status == HTTPStatus.OK, (answer.status, page)
        return page, answer.headers["Content-Type"]


def test_the_page_is_prometheus_text_with_help_and_types() -> None:
    with serving(lambda: [Sample(STEPS, 7), Sample(REPORTED, 0.25, ('a "name"',))]) as port:
        page, content_type = get(port)
    assert content_type.startswith("text/plain; version=")
    found = {family.name: family for family in text_string_to_metric_families(page)}
    steps, reported = found["ropewalk_steps"], found["ropewalk_reported_value"]
    assert (steps.type, steps.documentation) == ("counter", STEPS.help)
    assert steps.samples[0].value == 7
    assert (reported.type, reported.samples[0].labels) == ("gauge", {"name": 'a "name"'})
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6


def test_whoever_asks_for_openmetrics_gets_it() -> None:
    with serving(lambda: [Sample(STEPS, 7)]) as port:
        page, content_type = get(port, accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith("# EOF\n")
    assert "ropewalk_steps_total 7.0" in page


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        pytest.param(b"GET /secrets HTTP/1.1", b"404", id="another page"),
        pytest.param(b"POST /metrics HTTP/1.1", b"501", id="another method"),
        pytest.param(b"GET /metrics HTTP/9.9", b"505", id="another version"),
        pytest.param(b"nonsense", b"400", id="nonsense"),
    ],
)
def test_what_is_no_scrape_is_refused(request_line: bytes, status: bytes) -> None:
    with serving(lambda: [Sample(STEPS, 7)]) as port:
        with socket.create_connection(("127.0.0.1", port), scaled(10)) as client:
            client.sendall(request_line + b"\r\nHost: x\r\n\r\n")
            answer = client.makefile("rb").read()
        assert status in answer.split(b"\r\n")[0]
        assert b"ropewalk_steps" not in answer
        assert get(port)[0]


def test_peers_that_say_nothing_or_too_much_keep_nobody_out() -> None:
    with serving(lambda: [Sample(STEPS, 7)]) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(64)]
        dribbling = socket.create_connection(("127.0.0.1", port))
        dribbling.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        endless = socket.create_connection(("127.0.0.1", port), scaled(10))
        try:
            before = threading.active_count()
            assert "ropewalk_steps_total 7.0" in get(port)[0]
            assert threading.active_count() <= before + 1
            endless.sendall(b"a" * 8 * 1024)
            assert endless.recv(1) == b""  # closed, without an answer
        finally:
            for client in (*silent, dribbling, endless):
                client.close()


def test_many_who_ask_at_once_make_the_task_read_its_counters_once_a_second() -> None:
    reads: list[float] = []

    def collect() -> list[Sample]:
        reads.append(time.monotonic())
        return [Sample(STEPS, len(reads))]

    began = time.monotonic()
    page = MetricsPage(collect)
    for _ in range(200):
        page.render("")
    assert len(reads) <= 1 + (time.monotonic() - began)


def test_counters_that_cannot_be_read_do_not_pile_up_threads() -> None:
    stuck = threading.Event()

    def collect() -> list[Sample]:
        stuck.wait(scaled(30))
        return [Sample(STEPS, 1)]

    with serving(collect) as port:
        first = threading.Thread(target=get, args=(port,), daemon=True)
        first.start()
        try:
            wait_until(lambda: any(t.name == "session" for t in threading.enumerate()), scaled(10))
            with pytest.raises(AssertionError, match="503"):
                get(port)
        finally:
            stuck.set()
            first.join()
        assert "ropewalk_steps_total 1.0" in get(port)[0]


def test_a_failure_to_read_is_an_answer_and_the_port_goes_on() -> None:
    answers: list[Exception | list[Sample]] = [ValueError("secret"), [Sample(STEPS, 1)]]

    def collect() -> list[Sample]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with serving(collect) as port:
        with pytest.raises(AssertionError, match="503") as caught:
            get(port)
        assert "secret" not in str(caught.value)
        assert "ropewalk_steps_total 1.0" in get(port)[0]


def test_metrics_of_the_program_are_on_the_page_and_cannot_spoil_it() -> None:
    registry = CollectorRegistry()
    rows = Gauge("my_rows", "Rows read.", registry=registry)
    rows.set(5)
    assert "my_rows 5.0" in MetricsPage(list, registry).render("")[0].decode()

    class Broken:
        def collect(self) -> list[object]:
            raise ValueError("broken")

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Broken())  # type: ignore[arg-type]
    page, _ = MetricsPage(lambda: [Sample(STEPS, 7)], registry).render("")
    assert b"ropewalk_steps_total 7.0" in page


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with serving(list) as taken, pytest.raises(AddressInUseError, match=f":{taken} for metrics"):
        MetricsPort(TASK, "127.0.0.1:1", Settings(metrics_port=taken), list).start()


def test_a_ps_whose_metrics_port_is_taken_does_not_start() -> None:
    with serving(list) as taken:
        server = PsServer(TaskId("ps", 0), Settings(metrics_port=taken))
        with pytest.raises(AddressInUseError, match="--metrics-port"):
            server.start("127.0.0.1:0")


def test_a_ps_says_what_it_holds_and_who_came() -> None:
    [number] = free_ports(1)
    settings = Settings(metrics_port=number, job_id="mine", max_ps_bytes=12345)
    server = PsServer(TaskId("ps", 3), settings)
    server.start("127.0.0.1:0")
    try:
        page = get(number)[0]
    finally:
        server.stop(0)
    assert "ropewalk_ps_limit_bytes 12345.0" in page
    assert "ropewalk_ps_pushes_total 0.0" in page
    assert "ropewalk_refused_connections_total 0.0" in page
    assert 'ropewalk_task_info{index="3",job_id="mine",' in page
    with pytest.raises(ConnectionRefusedError):
        get(number)


def test_no_port_is_opened_unless_asked_for() -> None:
    before = threading.active_count()
    port = MetricsPort(TASK, "127.0.0.1:1", Settings(), list)
    port.start()
    assert threading.active_count() == before
    port.stop()


def test_names_follow_prometheus_conventions() -> None:
    for metric in CATALOGUE.values():
        assert metric.name.startswith("ropewalk_")
        assert metric.name == metric.name.lower()
        assert metric.help.endswith((".", ")."))
        # Reserved for Prometheus' own, or for histograms.
        assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created"))
        assert not {"job", "instance"} & set(metric.labels)
