"""How docstrings begin: what `make check` takes and refuses."""

import importlib.util
from types import ModuleType

import pytest

from helpers.processes import ROOT

TOOL = ROOT / "tools" / "docstrings.py"
if not TOOL.exists():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)


@pytest.fixture(scope="module")
def docstrings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docstrings", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = '''"""Places of things."""

LIMIT = 3
"""Of all places."""

class Place:
    """A place.

    It has room.

    Attributes:
        room: What is left of it. Unit: bytes,
            As a number.
        name: The name: as it was given.
    """

    @property
    def name(self) -> str:
        """The name."""

    def take(self, *sizes: int) -> int:
        """The room that is left.

        Args:
            *sizes: Those that are taken. Unit: bytes.

        Returns:
            Its room: a number.
            What: no entry of its own.

        Raises:
            ValueError: It has no room.
        """
        def left() -> int:
            """Count what is left."""
'''


def test_every_docstring_and_entry_is_judged_in_its_own_line(docstrings: ModuleType) -> None:
    faults = [
        (text.line, text.kind, text.words)
        for text in docstrings.texts(SOURCE)
        if docstrings.fault(text)
    ]
    assert faults == [
        (4, "attribute", "Of all places."),
        (12, "entry", "What is left of it. Unit: bytes,"),
        (22, "function", "The room that is left."),
        (25, "entry", "Those that are taken. Unit: bytes."),
        (28, "entry", "Its room: a number."),
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("entry", "None: wait for ever.", id="none"),
        pytest.param("class", "One of several.", id="one"),
        pytest.param("property", "The same for all.", id="the same"),
        pytest.param("module", "What is where.", id="question"),
        pytest.param("entry", "By name; None for none.", id="preposition"),
        pytest.param("property", "Where it serves.", id="place"),
        pytest.param("function", "A name.", id="article for a verb"),
        pytest.param("function", "Rows that are left.", id="plural for a verb"),
        pytest.param("function", "Writes rows.", id="third person"),
        pytest.param("function", "Number of rows.", id="noun with of"),
        pytest.param("function", "``a + b``.", id="code for a verb"),
    ],
)
def test_a_beginning_that_does_not_say_the_thing_is_refused(
    docstrings: ModuleType, kind: str, words: str
) -> None:
    assert docstrings.fault(docstrings.Text(1, kind, words)) is not None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("function", "Pass the rows on.", id="verb"),
        pytest.param("function", "Focus.", id="verb with a full stop"),
        pytest.param("property", "Whether rows are left.", id="whether"),
        pytest.param("entry", "int64, shape ``(n,)``.", id="dtype"),
        pytest.param("class", "The same-named rows.", id="the and a longer word"),
        pytest.param("attribute", "``a + b``.", id="code"),
    ],
)
def test_a_beginning_that_says_the_thing_is_taken(
    docstrings: ModuleType, kind: str, words: str
) -> None:
    assert docstrings.fault(docstrings.Text(1, kind, words)) is None
