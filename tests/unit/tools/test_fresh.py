"""What `make fresh` takes of a machine's configuration into a bare one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from helpers.processes import ROOT

TOOL = ROOT / "tools" / "fresh.py"
if not TOOL.exists():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)


@pytest.fixture(scope="module")
def fresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fresh", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TARGETS = """\
http://one/debian-security bookworm-security main
http://two/debian bookworm contrib
http://three/debian bookworm main
http://four/debian bookworm main
"""


def test_the_mirror_is_the_one_that_apt_uses(fresh: ModuleType) -> None:
    assert fresh.mirror(TARGETS, "bookworm") == "http://three/debian"
    with pytest.raises(fresh.CannotRunError, match="name no `main` of trixie"):
        fresh.mirror(TARGETS, "trixie")


def test_a_later_configuration_of_pip_overrules(fresh: ModuleType) -> None:
    merged = fresh.merged_pip_conf(
        [
            "[global]\ncert = /a\ntimeout = 5\n",
            "",
            "[global]\ncert = /100%\n[install]\nno-input = 1\n",
        ]
    )
    assert dict(merged["global"]) == {"cert": "/100%", "timeout": "5"}
    assert dict(merged["install"]) == {"no-input": "1"}


def test_folders_and_files_that_pip_reads_are_found(fresh: ModuleType, tmp_path: Path) -> None:
    for name in ("wheels", "index/simple", "index/files", "certs"):
        (tmp_path / name).mkdir(parents=True)
    bundle = tmp_path / "certs" / "ca.pem"
    bundle.touch()
    found = fresh.local_paths(
        [
            ("find-links", f"{tmp_path}/wheels {tmp_path}/missing wheels"),
            ("extra-index-url", f"\nfile://{tmp_path}/index/simple\nhttps://index/simple"),
            ("PIP_FIND_LINKS", f"file:{tmp_path}/wheels"),
            ("SSL_CERT_FILE", str(bundle)),
            ("SSL_CERT_DIR", str(tmp_path / "certs")),
            ("cache-dir", str(tmp_path)),
        ]
    )
    assert found == [tmp_path / "certs", tmp_path / "index", tmp_path / "wheels"]


def test_only_the_way_to_packages_is_taken_from_the_environment(fresh: ModuleType) -> None:
    kept = {"PIP_INDEX_URL": "a", "SSL_CERT_FILE": "b", "https_proxy": "c", "NO_PROXY": "d"}
    mine = {"PIP_CACHE_DIR": "e", "PIP_CONFIG_FILE": "f", "PATH": "g", "PYTHONUNBUFFERED": "1"}
    assert fresh.kept_environment({**kept, **mine}) == kept
