"""Lines of a log over streams that break wherever they like: each once, none lost."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.annexes.kubernetes.logs import LogCursor


def stamp(milliseconds: int) -> str:
    at = datetime.fromtimestamp(1_800_000_000 + milliseconds / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}123456Z"


def served(log: list[tuple[int, str]], since: str) -> bytes:
    """What the API sends: lines at or after a time, in the order in which they were written."""
    first = datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp() if since else 0
    chosen = [each for each in log if 1_800_000_000 + each[0] / 1000 >= first]
    return b"".join(f"{stamp(at)} {text}\n".encode() for at, text in chosen)


@given(
    # Steps of time are small or large, and may go back a little: two streams of one container.
    steps=st.lists(st.sampled_from([0, 0, 1, 7, 400, 2500, -3]), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    width=st.integers(1, 64),
)
def test_every_line_is_shown_once_and_in_order(
    steps: list[int], cuts: list[int], width: int
) -> None:
    log, at = [], 5_000
    for number, step in enumerate(steps):
        at += step
        log.append((at, f"line {number % 3}"))  # the same text, and often the same time
    cursor, shown = LogCursor(), list[str]()
    for cut in [*cuts, None]:
        data = served(log, cursor.begin())[:cut]
        for start in range(0, len(data), width):
            shown += [line.text for line in cursor.feed(data[start : start + width])]
    shown += [line.text for line in cursor.end()]
    assert shown == [text for _, text in log]


def test_a_stream_that_is_begun_again_asks_from_a_second_before_its_last_line() -> None:
    cursor = LogCursor()
    assert cursor.begin() == ""
    cursor.feed(f"{stamp(62_500)} a\n".encode())
    assert cursor.begin() == f"{datetime.fromtimestamp(1_800_000_061, UTC):%Y-%m-%dT%H:%M:%S}Z"


def test_a_line_that_was_written_twice_in_a_moment_is_shown_twice_over_a_break() -> None:
    cursor = LogCursor()
    cursor.begin()
    line = f"{stamp(5)} again\n".encode()
    assert len(cursor.feed(line)) == 1
    cursor.begin()
    assert [each.text for each in cursor.feed(line * 2)] == ["again"]
    cursor.begin()
    assert [each.text for each in cursor.feed(line * 3)] == ["again"]


def test_the_end_of_a_log_is_a_line_without_its_end() -> None:
    cursor = LogCursor()
    cursor.begin()
    assert cursor.feed(f"{stamp(0)} last wor".encode()) == []
    assert [line.text for line in cursor.end()] == ["last wor"]
    assert cursor.end() == []


def test_what_the_kubelet_says_itself_is_shown_as_it_is() -> None:
    cursor = LogCursor()
    cursor.begin()
    (line,) = cursor.feed(b"unable to retrieve container logs for containerd://0123\n")
    assert line.text.startswith("unable to retrieve")


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    cursor = LogCursor()
    cursor.begin()
    pieces = cursor.feed(f"{stamp(0)} ".encode() + b"x" * 3_000_000)
    assert len(pieces) == 1
    assert cursor.end() == []


def test_a_line_that_is_too_long_goes_on_as_the_tasks_and_not_as_the_kubelets() -> None:
    cursor = LogCursor()
    cursor.begin()
    stamp = b"2026-11-20T10:00:00.000000001Z "
    said = cursor.feed(stamp + b"x" * (1024 * 1024 + 1))
    said += cursor.feed(b"the rest\nunable to retrieve container logs\n")
    assert [bool(each.time) for each in said] == [True, True, False]
    assert [each.text for each in said[1:]] == ["the rest", "unable to retrieve container logs"]
