"""Check how docstrings begin: a function's with a verb, all others with the noun they describe.

A reader who sees one line, as editors and the site show it, should learn the thing from it. "Of the
last step." or "What was found." need the code to be understood; "Take the row gradient of the last
step." does not. Ruff's D401 knows verbs in the wrong mood; this tool refuses words that are none,
and words that refer to something said elsewhere, in entries of ``Args:`` too.

    python tools/docstrings.py [FILE OR FOLDER ...]

Without arguments it reads the whole package. ``Raises:`` lists conditions, which are not checked.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ropewalk"

_REFERRING = """
    another anybody as everybody how it its none nobody nothing of one so some somebody something
    that their theirs them these they this those what which who whom whose
"""
REFERRING = frozenset(_REFERRING.split())
"""Words that refer to something else, or ask: no docstring or entry begins with one."""

_LEANING = """
    above after against at because before below between beyond by during for from if in inside into
    like on over per since than through to toward towards under unless until via when whenever where
    wherever while with within without
"""
LEANING = frozenset(_LEANING.split())
"""Words that lean on a noun before them, as in "By name.": no docstring or entry begins so."""

_NO_VERBS = """
    a accumulator again all also always an and around ascending both consecutive each entry ever
    every everything few file flat fresh full global host integer is job later logical many
    memory momentum more most neighbouring neither nested never new no not number once only or
    path phase random regular row several slot step the there time two up velocity whether why
"""
NO_VERBS = frozenset(_NO_VERBS.split())
"""Further words that no function's docstring begins with, since a verb belongs there."""

VERB = re.compile(r"[A-Z][a-z]*(?:[^es]d|[^ds]|ss|cus|[bl]ias|eed|mbed)[.,:;]?")
"""A word that can be a verb in the imperative: none in the past tense or the third person."""

SECTIONS = ("Args", "Attributes", "Returns", "Yields")
SECTION = re.compile(r"( *)([A-Z][a-z]+):")
ENTRY = re.compile(r"( *)\*{0,2}\w[^:]*:(?: +|$)")


class Text(NamedTuple):
    """A docstring, or an entry of one, by its beginning.

    Attributes:
        line: Number of its first line in the file, from 1.
        kind: ``"function"``, ``"property"``, ``"class"``, ``"module"``, ``"attribute"`` or
            ``"entry"``.
        words: The rest of its first line.
    """

    line: int
    kind: str
    words: str


def texts(source: str) -> Iterator[Text]:
    """Find all docstrings of a module and their entries, those below attributes too."""
    yield from _texts_below(ast.parse(source))


def fault(text: Text) -> str | None:
    """Judge the first word.

    Returns:
        Why it will not do; None where it does.
    """
    first, _, rest = text.words.partition(" ")
    word = first.rstrip(".,:;").lower()
    if word in REFERRING or (word == "the" and re.match(r"same\b(?!-)", rest)):
        return f"{first!r} refers to something that is not said here"
    if word in LEANING:
        return f"{first!r} leans on a noun that is not there"
    if text.kind != "function":
        return None
    if word in NO_VERBS or not VERB.fullmatch(first) or rest.startswith("of "):
        return f"a function's docstring begins with a verb, and {first!r} is none"
    return None


def _texts_below(node: ast.AST) -> Iterator[Text]:
    for name in ("body", "orelse", "handlers", "finalbody"):
        before = None
        for child in getattr(node, name, ()):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                kind = _kind(node) if before is None else _kind(before)
                if kind and isinstance(child.value.value, str):
                    yield from _parts(child.value.lineno, kind, child.value.value)
            if isinstance(child, ast.AST):
                yield from _texts_below(child)
            before = child


def _kind(owner: ast.AST) -> str | None:
    match owner:
        case ast.Module():
            return "module"
        case ast.ClassDef():
            return "class"
        case ast.Assign() | ast.AnnAssign():
            return "attribute"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            names = [ast.unparse(node) for node in owner.decorator_list]
            return "property" if any(name.endswith("property") for name in names) else "function"
    return None


def _parts(line: int, kind: str, docstring: str) -> Iterator[Text]:
    """Yield the docstring, and every entry of its sections."""
    yield Text(line, kind, docstring.strip().partition("\n")[0])
    section, indent, margin = "", 0, 0
    for number, words in enumerate(docstring.split("\n"), line):
        depth = len(words) - len(words.lstrip())
        if begins := SECTION.fullmatch(words.rstrip()):
            section, indent, margin = begins[2], depth, 0
        elif words.strip() and section in SECTIONS:
            if depth <= indent:
                section = ""
            elif not margin or (depth == margin and section in ("Args", "Attributes")):
                margin = depth
                named = ENTRY.match(words) if section in ("Args", "Attributes") else None
                yield Text(number, "entry", words[named.end() :] if named else words.strip())


def main() -> None:
    """Print what is to be mended; exit with 1 if there is anything."""
    roots = [Path(name) for name in sys.argv[1:]] or list(PACKAGE.iterdir())
    count = 0
    for path in sorted({path for root in roots for path in _modules(root.resolve())}):
        for text in texts(path.read_text()):
            if reason := fault(text):
                print(f"{path.relative_to(ROOT)}:{text.line}: {reason}")
                count += 1
    if count:
        sys.exit(f"{count} to mend; CONTRIBUTING.md says how docstrings begin")


def _modules(root: Path) -> list[Path]:
    return [
        path
        for path in ([root] if root.suffix == ".py" else root.rglob("*.py"))
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


if __name__ == "__main__":
    main()
