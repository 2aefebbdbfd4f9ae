"""The page's server: who may see it, what it may load, and what it tells of a job."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dashboard.led_job import SETTINGS, LedJob, Served, served
from helpers.waiting import wait_until
from ropewalk.annexes.dashboard import feed
from ropewalk.annexes.dashboard.doors import MOST_BROWSERS, Doors
from ropewalk.annexes.dashboard.serving import certificate_of
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings

STATIC = Path(feed.__file__).with_name("static")
OURS = [path for path in STATIC.rglob("*.*") if "uplot" not in path.parts]
PATHS = [
    "/",
    "/api/job",
    "/api/history",
    "/api/news",
    "/static/main.js",
    "/static/page.css",
    "/nothing",
]


@pytest.fixture
def job() -> Iterator[LedJob]:
    made = LedJob()
    yield made
    made.close()


@pytest.fixture
def page(job: LedJob) -> Iterator[Served]:
    with served(job.found()) as made:
        yield made


@pytest.mark.parametrize("path", PATHS)
def test_who_has_not_come_by_a_link_sees_nothing(page: Served, path: str) -> None:
    status, headers, body = page.get(path)
    assert status == 403
    assert b"needs the link that was printed" in body
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_a_link_works_once_and_another_one_follows_it(page: Served) -> None:
    [first] = page.links
    assert page.open(first) == 303
    mine = page.cookie
    assert page.get("/")[0] == 200
    page.cookie = ""
    assert page.open(first) == 403
    assert page.open(page.links[1]) == 303
    assert page.cookie != mine
    page.cookie = mine  # the first browser is not sent away by the second
    assert page.get("/")[0] == 200


def test_a_browser_that_is_known_uses_up_no_link(page: Served) -> None:
    page.open(page.links[0])
    page.open(page.links[1])
    assert len(page.links) == 2


@pytest.mark.parametrize("token", ["", "x", "%00", "é" * 40])
def test_a_guessed_token_opens_nothing(page: Served, token: str) -> None:
    assert page.open(f"/open?token={token.encode().hex()}") == 403
    assert len(page.links) == 1


def test_only_so_many_browsers_are_known() -> None:
    doors = Doors()
    cookies = [doors.open(doors.token) or "" for _ in range(MOST_BROWSERS + 1)]
    assert [doors.knows(cookie) for cookie in cookies] == [False] + [True] * MOST_BROWSERS
    assert not doors.knows("")


def test_the_cookie_is_for_this_page_alone_and_for_no_script(page: Served) -> None:
    _, headers, _ = page.get(page.links[0].removeprefix(page.page.address))
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert str(page.page.port) in cookie


def test_every_answer_forbids_other_hosts_and_frames(page: Served) -> None:
    page.open(page.links[0])
    for path in ("/", "/api/job", "/static/main.js", "/static/nothing.js"):
        _, headers, _ = page.get(path)
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(page: Served, method: str) -> None:
    page.open(page.links[0])
    assert {page.get(path, method)[0] for path in PATHS} <= {404, 405}


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"]
)
def test_only_its_own_files_are_served(page: Served, path: str) -> None:
    page.open(page.links[0])
    assert page.get(path)[0] == 404


def test_numbers_that_are_none_are_read_by_a_browser(job: LedJob, page: Served) -> None:
    page.open(page.links[0])
    job.report(job.tasks[1], metrics={"loss": math.nan, "norm": math.inf})
    job.history.add(1e9, 1.0, {"metrics/loss": math.nan, "a": 1.0})
    tasks = page.json("/api/job")["status"]["tasks"]
    [reported] = [each["report"]["metrics"] for each in tasks if each["report"]["metrics"]]
    assert reported == {"loss": "NaN", "norm": "Infinity"}
    assert page.json("/api/history") == {
        "names": ["metrics/loss", "a"],
        "samples": [[1e9, 1.0, "nan", 1.0]],
        "events": [],
    }


def test_news_have_the_job_and_then_new_samples(job: LedJob, page: Served) -> None:
    page.open(page.links[0])
    job.history.add(1e9, 1.0, {"a": 1.0})
    seen = iter(page.news(1))
    assert next(seen)[1]["status"]["phase"] == "running"
    job.history.add(1e9 + 1, 1.0, {"a": 2.0})
    kinds = [kind for kind, _ in page.news(2)]
    assert kinds[0] == "job"


def test_nobody_is_asked_while_no_page_is_open(job: LedJob, page: Served) -> None:
    page.feed.every_s = 0.01
    page.open(page.links[0])
    page.news(3)
    wait_until(lambda: not page.feed.is_looking, 10)


def test_a_chief_that_is_gone_leaves_what_was_known_and_a_note(job: LedJob, page: Served) -> None:
    page.open(page.links[0])
    before = page.json("/api/job")
    job.server.stop(grace_s=0)
    after = page.json("/api/job")
    assert after["status"] == before["status"]
    assert job.address in after["note"]


def test_off_loopback_it_needs_a_certificate_or_a_word() -> None:
    with pytest.raises(ConfigurationError, match="other machines reach"):
        certificate_of(Settings(), "0.0.0.0")  # noqa: S104
    assert certificate_of(SETTINGS, "0.0.0.0") is None  # noqa: S104
    settings = Settings(tls_cert="c.pem", tls_key="k.pem")
    assert certificate_of(settings, "0.0.0.0") == ("c.pem", "k.pem")  # noqa: S104
    assert certificate_of(settings, "localhost") is None


def test_all_of_the_page_has_300_kb_at_most() -> None:
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) <= 300_000


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_text_of_others_becomes_no_markup_and_no_other_host_is_named(path: Path) -> None:
    text = path.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text
    )
    assert not set(re.findall(r"https?://([\w.]+)", text)) - {"www.w3.org"}
