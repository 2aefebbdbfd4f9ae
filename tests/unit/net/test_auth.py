"""Who is let in: proofs of the key on loopback, tokens, and the files that hold them."""

import os
import stat
from pathlib import Path

import pytest

from ropewalk.cluster.access import Leadership, Principal
from ropewalk.core.errors import (
    ConfigurationError,
    JobDoneError,
    JobStoppedError,
    PeerLostError,
    PermissionDeniedError,
    RopewalkError,
    UnauthenticatedError,
)
from ropewalk.core.process import events
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.auth import proof
from ropewalk.net.auth.credentials import SecurityMode, credentials_for, security_mode
from ropewalk.net.auth.guard import Guard, one_caller
from ropewalk.net.auth.proof import ProofChecker, Purpose, ask, load_key
from ropewalk.net.auth.token import TokenChecker, claims_of, new_keys, sign_token

KEY, OTHER_KEY = bytes(32), bytes([1]) * 32
NONCE = "0" * 32
HERE = "127.0.0.1:2222"
PURPOSE = Purpose("session ps", HERE)
WORKER = Principal("worker", "mnist", 1)
PS = TaskId("ps", 0)
NOW = 1_000_000.0


# -- proofs ------------------------------------------------------------------------------------


def test_a_proof_says_who_and_holds_once() -> None:
    checker = ProofChecker(KEY, began=5.0)
    said = ask(KEY, PURPOSE, WORKER, NONCE, 10.0)
    assert checker.check(said, "session ps", [HERE], 11.0) == WORKER
    with pytest.raises(UnauthenticatedError, match="used before"):
        checker.check(said, "session ps", [HERE], 12.0)


@pytest.mark.parametrize(
    ("said", "operation", "address", "why"),
    [
        (ask(OTHER_KEY, PURPOSE, WORKER, NONCE, 10.0), "session ps", HERE, "another key"),
        (ask(KEY, PURPOSE, WORKER, NONCE, 10.0), "session ring", HERE, "another key"),
        (ask(KEY, PURPOSE, WORKER, NONCE, 10.0), "session ps", "127.0.0.1:2223", "dialled 127.0"),
        (ask(KEY, PURPOSE, WORKER, NONCE, 10.0), "session ps", "[::1]:2222", "dialled 127.0.0.1:2"),
        (ask(KEY, PURPOSE, WORKER, NONCE, 20.0), "session ps", HERE, "made 10 s from now"),
        ("", "session ps", HERE, "form"),
        ("Ropewalk-Key who=a/worker,to=a:1,nonce=,at=1,mac=", "session ps", HERE, "form"),
        (ask(KEY, PURPOSE, WORKER, NONCE, 10.0).replace("/1,", "/0,"), "session ps", HERE, "key"),
    ],
    ids=["key", "purpose", "port", "address", "future", "nothing", "cut", "altered"],
)
def test_a_proof_that_does_not_hold_is_refused(
    said: str, operation: str, address: str, why: str
) -> None:
    with pytest.raises(UnauthenticatedError, match=why):
        ProofChecker(KEY, began=5.0).check(said, operation, [address], 10.0)


@pytest.mark.parametrize("at", [4.0, 20.0], ids=["before the server began", "old"])
def test_a_proof_that_comes_too_late_is_asked_for_again(at: float) -> None:
    checker = ProofChecker(KEY, began=5.0)
    with pytest.raises(PeerLostError, match="ask again"):
        checker.check(ask(KEY, PURPOSE, WORKER, NONCE, at), "session ps", [HERE], 51.0)


def test_a_server_shows_that_it_has_the_key() -> None:
    answer = proof.answer(KEY, PURPOSE, NONCE)
    assert proof.check_answer(KEY, PURPOSE, NONCE, answer)
    assert not proof.check_answer(KEY, PURPOSE, "1" * 32, answer)
    assert not proof.check_answer(OTHER_KEY, PURPOSE, NONCE, answer)
    assert not proof.check_answer(KEY, PURPOSE, NONCE, "")
    assert KEY.hex() not in answer + ask(KEY, PURPOSE, WORKER, NONCE, 1.0)


# -- the key's file ----------------------------------------------------------------------------


def test_the_first_task_makes_the_key_and_the_others_find_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    settings = Settings(key_file=str(path))
    key = load_key(settings)
    assert len(key) == 32
    assert load_key(settings) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o606])
def test_a_key_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_key(Settings(key_file=str(path)))
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"mode {mode:o}\); chmod 600"):
        load_key(Settings(key_file=str(path)))


def test_a_key_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="is no key"):
        load_key(Settings(key_file=str(path)))
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigurationError, match="not a plain file"):
        load_key(Settings(key_file=str(path)))


def test_a_folder_where_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others could put a key of theirs there"):
        load_key(Settings(key_file=str(tmp_path / "key")))


def test_without_a_home_the_key_is_in_a_folder_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_key(Settings())
    assert (tmp_path / ".local" / "state" / "ropewalk" / "loopback.key").exists()


# -- tokens ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return new_keys()


def test_keys_of_tokens_that_anybody_can_write_are_refused(
    keys: tuple[bytes, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "keys.pub"
    path.write_bytes(keys[1])
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="can be written by anybody"):
        TokenChecker(str(path))


@pytest.fixture
def checker(keys: tuple[bytes, bytes], tmp_path: Path) -> TokenChecker:
    (tmp_path / "keys.pub").write_bytes(keys[1])
    return TokenChecker(str(tmp_path / "keys.pub"))


@pytest.mark.parametrize("who", [WORKER, Principal("driver", "mnist"), Principal("ps")], ids=str)
def test_a_token_says_who(checker: TokenChecker, keys: tuple[bytes, bytes], who: Principal) -> None:
    token = sign_token(keys[0], who, 60)
    assert checker.check(token) == who
    assert checker.check(token) == who  # the second time without a signature
    assert claims_of(token)["role"] == who.role


def test_a_token_that_does_not_hold_is_refused(
    checker: TokenChecker, keys: tuple[bytes, bytes]
) -> None:
    def refused(token: str, why: str) -> None:
        with pytest.raises(UnauthenticatedError, match=why) as caught:
            checker.check(token)
        assert token not in str(caught.value) or not token

    head, claims, signature = sign_token(keys[0], WORKER, 60).split(".")
    refused(sign_token(keys[0], WORKER, 60, now=1_000), r"it expired at 1970-01-01 00:17:40 UTC")
    refused(sign_token(keys[0], WORKER, 60, now=2e9), "not valid yet")
    refused(sign_token(new_keys()[0], WORKER, 60), "not signed with a key of this cluster")
    refused(f"{head}.{claims[:-4]}AAAA.{signature}", "refused")
    refused(f"{head}.{claims}.", "refused")
    refused("", "cannot be read")
    refused("x" * 5000, "longer than 4096 bytes")
    none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"  # {"alg":"none","typ":"JWT"}
    refused(f"{none}.{claims}.", "refused")


def test_a_token_that_was_good_expires(keys: tuple[bytes, bytes], checker: TokenChecker) -> None:
    import time

    token = sign_token(keys[0], WORKER, 60)
    checker.check(token)
    with pytest.raises(UnauthenticatedError):
        # Its signature is checked again, by the clock of the library: so this one really expired.
        checker.check(sign_token(keys[0], WORKER, 1, now=time.time() - 60))
    assert checker.check(token) == WORKER


def test_keys_are_changed_without_a_restart(
    keys: tuple[bytes, bytes], checker: TokenChecker, tmp_path: Path
) -> None:
    path, (private, public) = tmp_path / "keys.pub", new_keys()
    old, new = sign_token(keys[0], WORKER, 60), sign_token(private, WORKER, 60)
    checker.check(old)
    for content, holds in ((keys[1] + public, (True, True)), (public, (False, True))):
        path.write_bytes(content)
        os.utime(path, ns=(path.stat().st_mtime_ns + 1, path.stat().st_mtime_ns + 1_000_000))
        for token, good in zip((old, new), holds, strict=True):
            if good:
                assert checker.check(token) == WORKER
            else:
                with pytest.raises(UnauthenticatedError):
                    checker.check(token)
    path.write_text("half")
    os.utime(path, ns=(1, 1))
    assert checker.check(new) == WORKER


# -- which way ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "address", "mode"),
    [
        ({}, "127.0.0.1:1", SecurityMode.LOCAL),
        ({}, "[::1]:1", SecurityMode.LOCAL),
        ({"insecure": True}, "ps-0:1", SecurityMode.INSECURE),
        ({"security": "insecure"}, "ps-0:1", SecurityMode.INSECURE),
        ({"token_file": "t"}, "127.0.0.1:1", SecurityMode.TOKEN),
        ({"token_keys": "t"}, "ps-0:1", SecurityMode.TOKEN),
        ({"tls_cert": "c"}, "ps-0:1", SecurityMode.MTLS),
        ({"security": "local"}, "ps-0:1", SecurityMode.LOCAL),
    ],
)
def test_the_files_given_imply_the_mode(
    fields: dict[str, object], address: str, mode: SecurityMode
) -> None:
    assert security_mode(Settings.model_validate(fields), address) is mode


def test_a_contradiction_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="contradict"):
        security_mode(Settings(insecure=True, security="mtls"), "ps-0:1")


# -- the guard ---------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(key_file=str(tmp_path / "key"))


@pytest.fixture
def guard(settings: Settings) -> Guard:
    made = Guard(PS, settings, job=lambda: "mnist", leadership=lambda: Leadership(True))
    made.begin("localhost:2222", "127.0.0.1", 2222)
    return made


def test_who_has_the_key_is_let_in_and_answered(guard: Guard, settings: Settings) -> None:
    credentials = credentials_for(settings, "127.0.0.1:2222", WORKER)
    said = credentials.authorization("session ps")
    visitor = guard.admit("session ps", said)
    assert visitor.principal == WORKER
    credentials.check_answer("session ps", said, guard.answer("session ps", said))
    visitor.check_claim(Incarnation(TaskId("worker", 1), 5, "mnist"))
    visitor.check("step APPLY")
    for operation in ("/ropewalk.proto.v1.ParameterServer/EndJob", "no such operation"):
        with pytest.raises(PermissionDeniedError, match="may not"):
            visitor.check(operation)
    with pytest.raises(PermissionDeniedError, match="with the credentials of worker:1"):
        visitor.check_claim(Incarnation(TaskId("worker", 0), 5, "mnist"))


def test_a_stranger_is_told_what_is_missing_and_audited(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnauthenticatedError, match="a key that only their user can read"):
        guard.admit("session ps", "", address="10.0.0.1:5")
    assert "audit: ps:0 session ps by a stranger from 10.0.0.1:5: refused" in caplog.text
    kept = events.recent(1)[0]
    assert (kept.name, kept.fields["caller"]) == ("caller.refused", "a stranger")
    assert guard.admit("/grpc.health.v1.Health/Check").principal is None


def test_what_a_caller_may_do_again_and_again_fills_no_disk_with_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.net.auth.guard._REFUSALS_S", 1000.0)
    guard = Guard(TaskId("chief", 77), Settings(security="mtls"))
    guard.mode = SecurityMode.MTLS
    others = Principal("worker", "", 3)
    with caplog.at_level("INFO", "ropewalk.audit"):
        for who in (WORKER, others):
            for _ in range(200):
                guard.check(who, "/ropewalk.proto.v1.Chief/Register", "10.0.0.1:5")
    lines = [line for line in caplog.messages if line.endswith("allowed")]
    assert len([line for line in lines if str(WORKER) in line]) == 50
    assert len(lines) == 100, "one caller takes no line from another one"


def test_a_server_without_the_key_is_not_believed(settings: Settings) -> None:
    credentials = credentials_for(settings, "127.0.0.1:2222", WORKER)
    said = credentials.authorization("session ps")
    for answer in ("", "Ropewalk-Key mac=" + "0" * 64):
        with pytest.raises(UnauthenticatedError, match="did not show that it belongs to this user"):
            credentials.check_answer("session ps", said, answer)


@pytest.mark.parametrize("over", [JobDoneError, JobStoppedError])
def test_a_server_that_shows_no_key_cannot_say_that_the_job_is_over(
    settings: Settings, over: type[RopewalkError]
) -> None:
    credentials = credentials_for(settings, "127.0.0.1:2222", WORKER)
    credentials.check_refusal(PeerLostError("it begins"))
    with pytest.raises(UnauthenticatedError, match="did not show that it belongs to this user"):
        credentials.check_refusal(over("it is done"))


def test_strangers_do_not_fill_the_audit_log(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        with pytest.raises(UnauthenticatedError):
            guard.admit("session ps")
    assert 1 <= len(caplog.records) <= 3


def test_insecure_lets_everybody_in_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(PS, Settings(insecure=True))
    guard.begin("ps-0:2222", "::", 2222)
    assert "whoever reaches port 2222 can read and change the model" in caplog.text
    visitor = guard.admit("/ropewalk.proto.v1.ParameterServer/EndJob")
    visitor.check_claim(Incarnation(TaskId("worker", 0), 5))
    assert guard.answer("session ps", "x") == ""


# -- callers that share what a server has --------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "counted"),
    [
        pytest.param(WORKER, WORKER, id="a task"),
        pytest.param(Principal("worker", "mnist"), None, id="any task of a role"),
        pytest.param(None, None, id="nobody in particular"),
        pytest.param(Principal("reader", "mnist"), Principal("reader"), id="readers are one"),
        pytest.param(Principal("driver", "a"), Principal("driver", "a"), id="the drivers of a job"),
    ],
)
def test_callers_are_counted_as_far_as_their_credentials_tell_them_apart(
    who: Principal | None, counted: Principal | None
) -> None:
    assert one_caller(who) == counted
