"""What the daemons of a standalone cluster make of their settings."""

from pathlib import Path

import pytest

from windlass.core.settings import Settings
from windlass.launch.standalone.daemon import with_absolute_paths


def test_paths_of_a_daemon_hold_in_the_folders_of_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = with_absolute_paths(Settings(model_dir="models", tls_ca="/ca.pem"))
    assert absolute.model_dir == str(tmp_path / "models")
    assert (absolute.tls_ca, absolute.tls_cert) == ("/ca.pem", "")
    assert with_absolute_paths(Settings(model_dir="s3://bucket/m")).model_dir == "s3://bucket/m"
