"""Text of others on a terminal: whatever it is, only line ends, tabs and colours have a meaning."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.strategies import text_of
from ropewalk.core.terminal import terminal_line, terminal_text

SGR = re.compile(r"\x1b\[[0-9;:]*m")
NASTY = "\x1b\x9b\x9d\x90\x9c\x07\\[]PX^_cm0;:?2JKHh52 ab\r\n\t\b\x7f\x00\u202e\u2066\ud800\u2028é"
TEXT = text_of(NASTY, max_size=40) | st.binary(max_size=40).map(lambda data: data.decode("latin-1"))


def obeyed(text: str) -> str:
    """The characters in it that no letter, mark, line end or tab are."""
    return "".join(
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t")
        or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


@given(TEXT)
@example("\x1b[3\x1b[2J1m")
@example("\x1b\x1bc[31m")
@example("\x1b]52;c;\x1b]52;c;eA==\x07\x07")
@example("\x1b]8;;http://a\x1b\\b")
def test_no_text_has_more_than_lines_tabs_and_colours(text: str) -> None:
    assert not obeyed(terminal_text(text))
    shown = terminal_text(text, colours=True)
    assert not obeyed(SGR.sub("", shown))
    shown.encode()
    colours = SGR.findall(shown)
    assert not colours or colours[-1] in ("\x1b[m", "\x1b[0m"), "a colour goes on"


@given(TEXT)
def test_a_text_that_was_made_safe_stays_as_it_is(text: str) -> None:
    for colours in (False, True):
        once = terminal_text(text, colours=colours)
        assert terminal_text(once, colours=colours) == once


@given(TEXT)
def test_a_line_is_one_line(text: str) -> None:
    for colours in (False, True):
        assert len(terminal_line(text, colours=colours).splitlines()) <= 1


@given(text_of("aé √漢🙂⏎\n\t[]/:\u200d\u200f", max_size=30))
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert terminal_text(text) == text == terminal_text(text, colours=True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("\x1b]52;c;cm0gLXJm\x07x", "x", id="OSC 52, the clipboard"),
        pytest.param("\x1b]0;title\x1b\\x", "x", id="OSC 0, the title"),
        pytest.param("\x1b]8;;http://evil\x1b\\here\x1b]8;;\x1b\\", "here", id="OSC 8, a link"),
        pytest.param("\x1bcx", "x", id="RIS, a reset"),
        pytest.param("\x1bP$q\x1b\\x", "x", id="DCS, a report"),
        pytest.param("\x1b_G\x1b\\\x1b^a\x1b\\\x1bXa\x1b\\x", "x", id="APC, PM, SOS"),
        pytest.param("\x9d52;c;cm0=\x9cx", "x", id="OSC as C1"),
        pytest.param("\x9b2J\x9b31mx", "x", id="CSI as C1"),
        pytest.param("\x1b[2J\x1b[H\x1b[?1049h\x1b[6nx", "x", id="CSI: wipe, move, mode, report"),
        pytest.param("\x1b(0\x1b#8\x1b=x", "x", id="character sets and modes"),
        pytest.param(
            "\x1b]52;c;never ends",
            "52;c;never ends",
            id="an open string is shown",
        ),
        pytest.param("a\x1b", "a\ufffd", id="an escape at the end"),
        pytest.param(
            "a\rb\bc\x07d\x7fe\x00\x85", "a\ufffdb\ufffdc\ufffdd\ufffde\ufffd\ufffd", id="alone"
        ),
        pytest.param("user\u202etxt.exe", "user\ufffdtxt.exe", id="a bidi override"),
        pytest.param("\udcff", "\ufffd", id="a surrogate"),
    ],
)
def test_what_a_terminal_would_obey_is_gone(text: str, shown: str) -> None:
    assert terminal_text(text) == terminal_text(text, colours=True) == shown


def test_colours_stay_where_they_are_wanted_and_end_with_the_text() -> None:
    bar = "\x1b[1m20/20\x1b[0m \x1b[32m━━\x1b[0m\x1b[K"
    assert terminal_text(bar, colours=True) == "\x1b[1m20/20\x1b[0m \x1b[32m━━\x1b[0m"
    assert terminal_text(bar) == "20/20 ━━"
    assert terminal_text("\x1b[38;5;9mred", colours=True) == "\x1b[38;5;9mred\x1b[0m"
    assert terminal_text("\x1b[" + "1;" * 1000 + "mx", colours=True) == "x"


def test_a_long_text_of_open_sequences_takes_no_longer_than_others() -> None:
    """Each takes well under a second; it would be hours if every one were looked for to the end."""
    for piece in ("\x1b]", "\x9d", "\x1b[", "\x1b[0;", "\x1b[31m", "\x1bP ", "\x1b "):
        text = piece * 200_000 + "x" * 200_000
        assert len(terminal_text(text, colours=True)) < 2_000_000
