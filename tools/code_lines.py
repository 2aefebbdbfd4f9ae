"""Count lines: of the product by room, and of the tests.

Code is a line with a token that is neither a comment nor part of a docstring. Generated modules are
left out. A function's length is the code of its body, that of functions inside it included.
"""

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


@dataclass(frozen=True, slots=True)
class Module:
    """The lines of one module.

    Attributes:
        name: Path of the module.
        code: Lines of code.
        in_all: Lines in all.
        imports: Lines of code that import.
        functions: Lines of code of the body of each function.
    """

    name: str
    code: int
    in_all: int
    imports: int
    functions: tuple[int, ...]


def count(text: str, name: str = "") -> Module:
    """Count the lines of a module.

    Args:
        text: Source of the module.
        name: Path of the module.
    """
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.Expr) and _is_text(node.value):
            lines -= _lines_of(node)
    imports = [_lines_of(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    functions = [
        len(lines & set().union(*map(_lines_of, node.body)))
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return Module(name, len(lines), text.count("\n"), len(set().union(*imports)), tuple(functions))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def modules(folder: Path) -> Iterator[Module]:
    """The modules below a folder, generated ones left out."""
    for path in sorted(folder.rglob("*.py")):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            yield count(path.read_text(), str(path.relative_to(ROOT)))


def rooms() -> dict[str, list[Module]]:
    """The modules of the product by room; those of ``ropewalk`` itself come first."""
    package = ROOT / "src" / "ropewalk"
    names = sorted(path.name for path in package.iterdir() if path.is_symlink())
    # A folder of the package is a link, which rglob does not follow.
    return {"ropewalk": list(modules(package)), **{n: list(modules(ROOT / n)) for n in names}}


def report(by_room: dict[str, list[Module]], tests: Sequence[Module]) -> str:
    """The table, and what is said of the product below it.

    Args:
        by_room: Modules of the product.
        tests: Modules of the tests.
    """
    product = [module for found in by_room.values() for module in found]
    lengths = [length for module in product for length in module.functions]
    code = sum(module.code for module in product)
    imports = sum(module.imports for module in product) / code
    largest = max(product, key=lambda module: module.code)
    return "\n".join(
        [
            f"{'':14}{'files':>6}{'code':>9}{'in all':>9}",
            *(_row(f"  {room}", found) for room, found in by_room.items()),
            _row("product", product),
            _row("tests", tests),
            "",
            "of the product:",
            f"  imports: {imports:.1%} of the code",
            f"  functions: median {statistics.median(lengths):g} lines of code, "
            f"nine in ten at most {statistics.quantiles(lengths, n=10)[-1]:g}",
            f"  largest module: {largest.name}, {largest.code} lines of code, "
            f"{largest.in_all} in all",
        ]
    )


def _row(name: str, found: Iterable[Module]) -> str:
    found = list(found)
    code, in_all = sum(each.code for each in found), sum(each.in_all for each in found)
    return f"{name:14}{len(found):6}{code:9,}{in_all:9,}"


def main() -> None:
    """Print the table; with names of files or folders their sum alone."""
    named = [Path(word).resolve() for word in sys.argv[1:]]
    if not named:
        print(report(rooms(), list(modules(ROOT / "tests"))))
        return
    for path in named:
        found = modules(path) if path.is_dir() else [count(path.read_text())]
        print(_row(str(path.relative_to(ROOT)), found))


if __name__ == "__main__":
    main()
