"""What tasks write, cut into lines."""

import pytest

from ropewalk.launch.processes.process import LineSplitter


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param([b"a\nb", b"c\n"], ["a", "bc"], id="lines"),
        pytest.param([b"a\r\nb\r\n"], ["a", "b"], id="of Windows"),
        pytest.param([b"a\n\nb\n"], ["a", "", "b"], id="empty ones"),
        pytest.param([b"no end"], ["no end"], id="without an end"),
        pytest.param([b"\xff\n"], ["\ufffd"], id="not UTF-8"),
        pytest.param([b"\r 0%", b"\r50%", b"\r100%\n", b"x\n"], ["100%", "x"], id="tqdm"),
        pytest.param([b"50%\r", b"100%\r"], ["100%"], id="the other way round"),
        pytest.param([b"\r50%", b"\x1esaved\n"], ["50%", "\x1esaved"], id="a log line between"),
    ],
)
def test_of_what_overwrites_itself_the_last_is_a_line(
    pieces: list[bytes], lines: list[str]
) -> None:
    splitter = LineSplitter()
    found = [line for piece in pieces for line in splitter.feed(piece, now=0.1)]
    assert found + splitter.end() == lines


def test_a_progress_bar_that_goes_on_is_shown_every_two_seconds() -> None:
    splitter = LineSplitter()
    found = [
        (second, line)
        for second in range(1, 8)
        for line in splitter.feed(b"\r%d s" % second, now=second)
    ]
    assert found == [(2, "2 s"), (4, "4 s"), (6, "6 s")]
    assert splitter.end() == ["7 s"]


def test_a_line_that_was_overwritten_and_has_no_end_is_bounded() -> None:
    splitter = LineSplitter()
    for second in range(10):
        lines = splitter.feed(b"\r" + b"x" * 40_000, now=second)
        lines += splitter.feed(b"x" * 60_000, now=second)
        assert all(len(line) <= 65_536 for line in lines)


def test_a_line_without_an_end_is_bounded() -> None:
    splitter = LineSplitter()
    assert sum(len(splitter.feed(b"x" * 40_000, now=0)) for _ in range(10)) == 5
