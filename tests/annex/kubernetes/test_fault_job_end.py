"""What a chief's container does when its job is over, against a stand-in for the API server."""

import json
import logging
import os
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from helpers import processes
from helpers.tls_files import issued, write
from helpers.waiting import scaled
from ropewalk.annexes.kubernetes import job_end
from ropewalk.annexes.kubernetes import job_end as own_job
from ropewalk.annexes.kubernetes.container import run_supervised
from ropewalk.annexes.kubernetes.requests import ACCOUNT_FOLDER
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.core.errors import MissingExtraError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.net.this_machine import free_ports


class ApiServer(ThreadingHTTPServer):
    """Notes what is asked of it, and answers changes with ``coming``, then with ``status``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        files = write(folder, issued())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files["tls_cert"], files["tls_key"])
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.status = 200
        self.coming: list[int] = []
        self.asked: list[tuple[str, str, object, str]] = []
        self.paths: dict[str, object] = {}
        self.job: object = {}


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        token = self.headers["Authorization"]
        path, _, query = self.path.partition("?")
        assert query == "fieldManager=ropewalk-chief"
        self.server.asked.append((path, self.headers["Content-Type"], body, token))
        self.send_response(self.server.coming.pop(0) if self.server.coming else self.server.status)
        self.end_headers()
        self.wfile.write(b'{"message": "digits-chief cannot patch"}')

    def do_GET(self) -> None:
        own = "/apis/batch/v1/namespaces/training/jobs/digits-chief"
        paths = self.server.paths or {own: self.server.job}
        assert self.path in paths
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps(paths[self.path]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's
        """Nothing."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
        monkeypatch.setenv("ROPEWALK_ENDS_JOB", "true")
        monkeypatch.setenv("POD_NAMESPACE", "training")
        yield server
        server.shutdown()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret")
    return tmp_path


PS = ("/apis/apps/v1/namespaces/training/statefulsets/digits-ps/scale", {"spec": {"replicas": 0}})
OTHERS = [
    (f"/apis/batch/v1/namespaces/training/jobs/digits-{role}", {"spec": {"suspend": True}})
    for role in ("worker", "evaluator")
]


@pytest.mark.parametrize(
    ("code", "ended"), [(0, [PS]), (1, [PS, *OTHERS]), (8, [PS, *OTHERS])], ids=str
)
def test_a_job_that_is_over_for_good_ends_what_it_has_left(
    api: ApiServer, account: Path, code: int, ended: list[tuple[str, object]]
) -> None:
    job_end.end_job("digits", "chief", code, account)
    assert [(path, change) for path, _, change, _ in api.asked] == ended
    assert {kind for _, kind, _, _ in api.asked} == {"application/merge-patch+json"}
    assert {token for _, _, _, token in api.asked} == {"bearer secret"}


@pytest.mark.parametrize("code", [137, 140, 143])
def test_a_chief_that_is_started_again_keeps_its_job(
    api: ApiServer, account: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setenv("ROPEWALK_POD_FAILURES", "2")
    api.job = {"spec": {"backoffLimitPerIndex": 3}}
    job_end.end_job("digits", "chief", code, account)
    assert api.asked == []


@pytest.mark.parametrize(
    ("code", "failures", "conditions", "is_last"),
    [
        pytest.param(143, "", ["FailureTarget"], True, id="its deadline is over"),
        pytest.param(143, "9", [], False, id="evicted"),
        pytest.param(140, "3", [], True, id="retries are used up"),
        pytest.param(137, "2", ["Complete"], False, id="one is left"),
        pytest.param(137, "", [], False, id="the first pod"),
    ],
)
def test_a_chief_whose_job_makes_no_other_pod_ends_what_is_left(
    api: ApiServer,
    account: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    failures: str,
    conditions: list[str],
    *,
    is_last: bool,
) -> None:
    monkeypatch.setenv("ROPEWALK_POD_FAILURES", failures)
    said = [{"type": each, "status": "True"} for each in conditions]
    api.job = {"spec": {"backoffLimitPerIndex": 3}, "status": {"conditions": said}}
    job_end.end_job("digits", "chief", code, account)
    assert [(path, change) for path, _, change, _ in api.asked] == (
        [PS, *OTHERS] if is_last else []
    )


def test_a_chief_that_cannot_know_whether_another_pod_follows_ends_nothing(
    api: ApiServer, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.status = 403
    job_end.end_job("digits", "chief", 143, account)
    assert api.asked == []
    assert "whether another pod follows is not known" in caplog.text


@pytest.mark.parametrize(
    ("status", "job", "why"),
    [
        pytest.param(200, {}, "", id="the pod alone"),
        pytest.param(200, {"spec": {"suspend": False}}, "", id="not suspended"),
        pytest.param(200, {"spec": {"suspend": True}}, "its Job is suspended", id="suspended"),
        pytest.param(404, {}, "its Job was deleted", id="deleted"),
        pytest.param(
            200,
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            "its Job is being deleted",
            id="deleted before its pods",
        ),
        pytest.param(
            200,
            {"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}},
            "its Job has failed, or its deadline is over",
            id="its deadline is over",
        ),
        pytest.param(403, {}, None, id="it cannot be known"),
    ],
)
def test_a_chief_that_is_asked_to_stop_finds_out_whether_another_one_follows(
    api: ApiServer,
    account: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    job: dict[str, object],
    why: str | None,
) -> None:
    api.status, api.job = status, {"metadata": {}, **job}
    assert own_job.why_none_follows("digits", "chief", account) == why
    monkeypatch.delenv("ROPEWALK_ENDS_JOB")
    api.status = 404
    assert own_job.why_none_follows("digits", "chief", account) is None, "it may not ask"


SETS = "/apis/apps/v1/namespaces/training/statefulsets/digits-"
RECORD = "/api/v1/namespaces/training/configmaps/digits-status"


@pytest.mark.parametrize(
    ("role", "code", "ended"),
    [
        pytest.param("chief", 0, ["ps", "worker", "chief"], id="done"),
        pytest.param("chief", 1, ["ps", "evaluator", "worker", "chief"], id="failed"),
        pytest.param("worker", 0, ["ps", "worker"], id="worker 0 leads"),
        pytest.param("chief", 143, [], id="evicted"),
    ],
)
def test_a_chief_whose_pod_a_stateful_set_makes_writes_the_result_and_ends_itself_last(
    api: ApiServer,
    account: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    code: int,
    ended: list[str],
) -> None:
    monkeypatch.setenv("ROPEWALK_HOLDS", "true")
    api.paths = {f"{SETS}chief": {"metadata": {}, "spec": {"replicas": 1}}}
    assert job_end.end_job("digits", role, code, account, reason="why") is bool(ended)
    if not ended:
        assert api.asked == []
        return
    (path, _, result, _), *changes = api.asked
    assert (path, result) == (RECORD, {"data": {"ended": str(code), "reason": "why"}})
    scaled = {"spec": {"replicas": 0}}
    assert [(path, change) for path, _, change, _ in changes] == [
        OTHERS[1] if each == "evaluator" else (f"{SETS}{each}/scale", scaled) for each in ended
    ]


@pytest.mark.parametrize(
    ("data", "ended"),
    [
        pytest.param({"ended": "0", "reason": ""}, (0, ""), id="done"),
        pytest.param({"ended": "8", "reason": "no"}, (8, "no"), id="failed"),
        pytest.param({"phase": "failed", "reason": "ps:0 was lost"}, None, id="it goes on"),
        pytest.param(None, None, id="nothing was written"),
    ],
)
def test_a_chief_that_is_started_when_its_job_is_over_finds_that_out(
    api: ApiServer, account: Path, data: object, ended: object
) -> None:
    api.paths = {RECORD: {"data": data}}
    assert job_end.ended_before("digits", account) == ended
    api.status = 403
    assert job_end.ended_before("digits", account, patience_s=0.2) is None


@pytest.mark.parametrize(
    ("own", "why"),
    [
        pytest.param({"metadata": {}, "spec": {"replicas": 1}}, "", id="evicted"),
        pytest.param(
            {"metadata": {}, "spec": {"replicas": 0}}, "its StatefulSet was scaled to none",
            id="scaled to none",
        ),
        pytest.param(
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            "its StatefulSet is being deleted", id="deleted",
        ),
    ],
)  # fmt: skip
def test_a_chief_of_a_stateful_set_finds_out_whether_another_one_follows(
    api: ApiServer, account: Path, monkeypatch: pytest.MonkeyPatch, own: object, why: str
) -> None:
    monkeypatch.setenv("ROPEWALK_HOLDS", "true")
    api.paths = {f"{SETS}chief": own}
    assert own_job.why_none_follows("digits", "chief", account) == why
    api.status = 404
    assert own_job.why_none_follows("digits", "chief", account) == "its StatefulSet was deleted"


def test_a_job_that_lacks_a_role_has_nothing_of_it_to_end(
    api: ApiServer, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.coming = [200, 200, 404]
    job_end.end_job("digits", "chief", 1, account)
    assert len(api.asked) == 3
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert said == [], "a job without an evaluator has left none"


def test_an_api_server_that_is_away_for_a_moment_is_asked_again(
    api: ApiServer, account: Path
) -> None:
    api.coming = [503, 429]
    job_end.end_job("digits", "chief", 0, account)
    assert [path for path, *_ in api.asked] == [PS[0]] * 3


@pytest.mark.parametrize("status", [403, 500])
def test_what_the_api_server_refuses_is_said_and_changes_nothing(
    api: ApiServer, account: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    api.status = status
    job_end.end_job("digits", "chief", 0, account, patience_s=0.2)
    [said] = caplog.messages
    assert "what the job has left keeps what it has requested" in said
    assert "digits-chief cannot patch" in said


def test_a_container_that_is_to_end_its_job_and_lacks_the_client_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROPEWALK_ENDS_JOB", "true")
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    chief = cast(ResolvedTask, SimpleNamespace(is_chief=True))
    with pytest.raises(MissingExtraError, match=r"pip install 'ropewalk\[k8s\]'"):
        run_supervised(chief, [], Settings())


@pytest.mark.real_start
@pytest.mark.usefixtures("no_process_left")
def test_a_container_whose_account_has_no_token_ends_as_its_job_did(tmp_path: Path) -> None:
    assert not ACCOUNT_FOLDER.exists()
    program = tmp_path / "program.py"
    program.write_text("print('done')")
    code, output, errors = processes.run(
        [*processes.ROPEWALK, "run", str(program)],
        timeout_s=scaled(60),
        env={
            **os.environ,
            "ROPEWALK_SUPERVISE": "true",
            "ROPEWALK_ENDS_JOB": "true",
            "ROPEWALK_JOB_ID": "digits",
            "POD_NAMESPACE": "training",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        },
    )
    assert (code, output) == (0, "done\n"), errors
    assert "what the job has left keeps what it has requested: this pod has no" in errors


@pytest.mark.real_start
@pytest.mark.usefixtures("no_process_left")
def test_a_chief_whose_tasks_do_not_come_ends_what_the_job_holds(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import ropewalk as rw; rw.training.is_evaluator(); print('begun')")
    chief, ps = (f"127.0.0.1:{port}" for port in free_ports(2))
    where = {"cluster": {"chief": [chief], "ps": [ps]}, "task": {"type": "chief", "index": 0}}
    code, output, errors = processes.run(
        [*processes.ROPEWALK, "run", str(program)],
        timeout_s=scaled(60),
        env={
            **os.environ,
            "TF_CONFIG": json.dumps(where),
            "ROPEWALK_SUPERVISE": "true",
            "ROPEWALK_ENDS_JOB": "incomplete",
            "ROPEWALK_JOIN_TIMEOUT_S": "0.5",
            "ROPEWALK_JOB_ID": "digits",
            "POD_NAMESPACE": "training",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        },
    )
    assert (code, output) == (ExitCode.JOIN_TIMEOUT, "")
    assert "what the job has left keeps what it has requested: this pod has no" in errors
