"""A task belongs to the job of its certificate and token, and may have an index of its own."""

from pathlib import Path

import pytest

from helpers.tls_files import issued, write
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.net.auth.credentials import are_of_one_index, job_of_credentials, with_own_job
from ropewalk.net.auth.token import new_keys, sign_token


def token_file(folder: Path, who: Principal) -> str:
    path = folder / "token"
    path.touch(0o600)
    path.write_text(sign_token(new_keys()[0], who, 60))
    return str(path)


def test_of_its_certificate(tmp_path: Path) -> None:
    settings = Settings(**write(tmp_path, issued("worker", 1, job="mnist")))
    assert with_own_job(settings).job_id == "mnist"
    assert with_own_job(settings.model_copy(update={"job_id": "mnist"})).job_id == "mnist"


def test_of_its_token(tmp_path: Path) -> None:
    settings = Settings(token_file=token_file(tmp_path, Principal("worker", "mnist", 1)))
    assert with_own_job(settings).job_id == "mnist"


@pytest.mark.parametrize("job_id", ["", "mnist"])
def test_credentials_for_any_job_leave_it_as_it_is(tmp_path: Path, job_id: str) -> None:
    settings = Settings(
        **write(tmp_path, issued("worker", 1)),
        token_file=token_file(tmp_path, Principal("worker")),
        job_id=job_id,
    )
    assert with_own_job(settings) == settings


def test_credentials_of_another_job_are_refused(tmp_path: Path) -> None:
    settings = Settings(**write(tmp_path, issued("worker", 1, job="mnist")), job_id="criteo")
    with pytest.raises(ConfigurationError, match="'criteo' in job_id and 'mnist' in tls_cert"):
        with_own_job(settings)


def test_the_name_of_a_cluster_is_no_job_that_its_credentials_name(tmp_path: Path) -> None:
    for_any_job = Settings(**write(tmp_path, issued("chief", 0)), job_id="desk")
    assert job_of_credentials(for_any_job) == ""
    assert job_of_credentials(Settings(insecure=True, job_id="desk")) == ""
    of_one = Settings(**write(tmp_path, issued("chief", 0, job="mnist")))
    assert job_of_credentials(of_one) == "mnist"


def test_insecure_tasks_have_no_use_for_their_files() -> None:
    settings = Settings(insecure=True, tls_cert="/nowhere", job_id="mnist")
    assert with_own_job(settings) == settings


@pytest.mark.parametrize(
    ("of_certificate", "of_token", "one"),
    [(1, 1, True), (1, None, True), (None, 0, True), (None, None, False)],
)
def test_credentials_are_of_one_index_if_any_of_them_is(
    tmp_path: Path, of_certificate: int | None, of_token: int | None, one: bool
) -> None:
    settings = Settings(
        **write(tmp_path, issued("worker", of_certificate)),
        token_file=token_file(tmp_path, Principal("worker", index=of_token)),
    )
    assert are_of_one_index(settings) is one
    assert not are_of_one_index(settings.model_copy(update={"insecure": True}))
    assert not are_of_one_index(Settings()), "a key is good for all"
