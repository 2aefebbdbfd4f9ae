"""Certificates are checked when they are read: what is wrong is said, and what to do."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.tls_files import authority, issued, write
from ropewalk.core.errors import ConfigurationError
from ropewalk.net.auth.tls_files import CredentialFiles

Damage = Callable[[dict[str, Any]], object]


def opened(
    settings: dict[str, Any], *, mutual: bool = True, retry_s: float = 1.0
) -> CredentialFiles:
    paths = settings["tls_cert"], settings["tls_key"], settings["tls_ca"]
    return CredentialFiles(*paths, mutual=mutual, retry_s=retry_s)


def cut(name: str) -> Damage:
    def damage(settings: dict[str, Any]) -> None:
        path = Path(settings[name])
        path.write_bytes(path.read_bytes()[:-60])

    return damage


def put(name: str, content: bytes) -> Damage:
    return lambda settings: Path(settings[name]).write_bytes(content)


def fifo(name: str) -> Damage:
    def damage(settings: dict[str, Any]) -> None:
        Path(settings[name]).unlink()
        os.mkfifo(settings[name])

    return damage


OTHER = issued("worker", 1)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut("tls_cert"), r"tls_cert: .*tls.crt is truncated; write it anew"),
        (cut("tls_key"), r"tls_key: .*tls.key is truncated"),
        (cut("tls_ca"), r"tls_ca: .*ca.crt is truncated"),
        (put("tls_cert", b"hello"), r"tls_cert: .* holds no PEM"),
        (put("tls_key", b""), r"tls_key: .* holds no PEM"),
        (put("tls_key", OTHER.key), r"is not the key of the certificate"),
        (put("tls_ca", authority("other").pem), r"comes from another CA than those in tls_ca"),
        (lambda s: Path(s["tls_cert"]).unlink(), r"tls.crt cannot be read: No such file"),
        (fifo("tls_ca"), r"ca.crt cannot be read: it is a FIFO, no plain file"),
        (lambda s: s.update(tls_key=""), r"belong together; tls_key is missing"),
        (lambda s: Path(s["tls_key"]).chmod(0o644), r"mode 0644.*chmod 600"),
        (lambda s: Path(s["tls_key"]).chmod(0o604), r"mode 0604"),
        (lambda s: Path(s["tls_key"]).chmod(0o660), r"mode 0660"),
        (lambda s: Path(s["tls_ca"]).chmod(0o646), r"\(tls_ca\) can be written by anybody"),
        (
            put("tls_cert", b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"),
            r"truncated, or no PEM",
        ),
    ],
    ids=[
        "truncated certificate", "truncated key", "truncated CA", "no PEM", "empty key",
        "key of another", "other CA", "missing", "FIFO", "key not named", "all may read", "others may read",
        "the group may write", "all may write the CA", "nonsense",
    ],
)  # fmt: skip
def test_files_that_are_not_in_order(tmp_path: Path, damage: Damage, says: str) -> None:
    settings = write(tmp_path, issued())
    damage(settings)
    with pytest.raises(ConfigurationError, match=says):
        opened(settings).current()


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ({"begins_in_days": -3.0, "days": 2.0}, r"has expired on 20.*the clock here says 20"),
        ({"begins_in_days": 2.0}, r"not valid before 20.*the clock here says 20"),
    ],
    ids=["expired", "not yet valid"],
)
@pytest.mark.parametrize("ca", [True, False], ids=["with a CA", "without"])
def test_ones_own_certificate_must_be_valid_now(
    tmp_path: Path, certificate: dict[str, Any], says: str, ca: bool
) -> None:
    settings = write(tmp_path, issued(**certificate))
    if not ca:
        settings["tls_ca"] = ""
    with pytest.raises(ConfigurationError, match=says):
        opened(settings, mutual=ca).current()


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``run_as(geteuid=1)``: what the system says of this process's user."""

    def pretend(**answers: object) -> None:
        for name, answer in answers.items():
            monkeypatch.setattr(os, name, lambda answer=answer: answer)

    return pretend


def test_a_key_of_root_may_be_read_by_our_group_as_kubernetes_mounts_it(
    tmp_path: Path, run_as: Callable[..., None]
) -> None:
    settings = write(tmp_path, issued())
    key = Path(settings["tls_key"])
    key.chmod(0o440)
    found = os.stat(key)
    ours = [found.st_gid] if found.st_uid == 0 else [*os.getgroups()]
    run_as(getgroups=ours)
    if found.st_uid == 0:
        assert opened(settings).current().server is not None
    run_as(getgroups=[], getegid=found.st_gid + 1)
    with pytest.raises(ConfigurationError, match="mode 0440"):
        opened(settings).current()


def test_a_key_of_another_user_is_refused(tmp_path: Path, run_as: Callable[..., None]) -> None:
    settings = write(tmp_path, issued())
    run_as(geteuid=12345)
    if os.stat(settings["tls_key"]).st_uid == 0:
        os.chown(settings["tls_key"], 54321, -1)
    with pytest.raises(ConfigurationError, match="belongs to user"):
        opened(settings).current()


def test_unchanged_files_are_read_once(tmp_path: Path) -> None:
    files = opened(write(tmp_path, issued()))
    assert files.current() is files.current()


def test_half_written_files_are_left_alone_with_one_warning_until_they_are_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = write(tmp_path, issued())
    files = opened(settings, retry_s=0.0)
    good = files.current()
    fresh = issued()
    Path(settings["tls_cert"]).write_bytes(fresh.certificate)
    for _ in range(3):  # its key is still the old one
        assert files.current() is good
    Path(settings["tls_key"]).write_bytes(b"")
    assert files.current() is good
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert "The certificates that were read before are still used" in caplog.text
    Path(settings["tls_key"]).write_bytes(fresh.key)
    assert files.current().certificate == fresh.certificate
    assert files.current() is not good


def test_a_link_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a volume: names are links into ``..data``, itself a link."""
    for number, made in enumerate((issued(), issued(index=1))):
        write(tmp_path / f"..{number}", made)
    (tmp_path / "..data").symlink_to("..0")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    paths = {
        f"tls_{key}": str(tmp_path / name)
        for key, name in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
    }
    files = opened(paths)
    first = files.current()
    (tmp_path / "..new").symlink_to("..1")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    assert files.current().certificate != first.certificate
