"""Who imports whom in a package, by string too: its modules are read, and none is imported."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .sources import tree

_LOADERS = ("import_module", "__import__")
_TABLES = ("public_getattr", "show")  # of core/public_face.py: names, each with its place
_REGISTERED = "load_public_names"  # names what the public face has registered
_PATH = re.compile(r"\.*[\w*]+(\.[\w*]+)*(:\w+)?")


@dataclass(frozen=True)
class StringImport:
    """A string of one module that names another.

    Attributes:
        source: The module that has the string.
        target: The module that it names.
        line: Where the string is.
    """

    source: str
    target: str
    line: int


class Package:
    """A package's modules.

    Args:
        modules: The file of each module, by the module's full name; all below one package.
    """

    def __init__(self, modules: dict[str, Path]) -> None:
        self._top = min(modules, key=len)
        self._packages = {name for name, path in modules.items() if path.stem == "__init__"}
        self._trees = {name: tree(path) for name, path in modules.items()}
        self._strings = {name: _Strings(tree) for name, tree in self._trees.items()}

    def imports(self) -> dict[str, set[str]]:
        """What each module imports when it runs, in functions too, and by string."""
        found = {name: set(self._by_statement(name)) for name in self._trees}
        for each in self.by_string():
            found[each.source].add(each.target)
        return {name: targets - {name} for name, targets in found.items()}

    def by_string(self) -> list[StringImport]:
        """The strings that name a module of the package: in calls, in tables, or anywhere."""
        return [
            StringImport(name, target, line)
            for name, strings in self._strings.items()
            for pattern, line in strings.patterns(self._top)
            for target in self._matching(name, pattern)
        ]

    def by_variable(self) -> set[str]:
        """Modules that import what no string in them names."""
        return {name for name, strings in self._strings.items() if strings.by_variable}

    def _by_statement(self, module: str) -> Iterator[str]:
        for node in _that_runs(self._trees[module]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self._trees)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(module, "." * node.level + (node.module or ""))
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield from {inner if inner in self._trees else base} & self._trees.keys()

    def _matching(self, module: str, pattern: str) -> list[str]:
        fits = re.compile(self._absolute(module, pattern).replace(".", r"\.").replace("*", r"\w+"))
        return [name for name in self._trees if name != module and fits.fullmatch(name)]

    def _absolute(self, module: str, path: str) -> str:
        level = len(path) - len(path.lstrip("."))
        if not level:
            return path
        parents = module.split(".")
        above = level - (module in self._packages)
        return ".".join([*parents[: len(parents) - above], *filter(None, [path[level:]])])


class _Strings(ast.NodeVisitor):
    """The strings of a module that may name another; ``*`` stands for what is not known.

    An absolute name counts where it is imported: in a call, or in a module that imports variables.
    Elsewhere it may be that of a process to start.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.by_variable = False
        self._in_calls: list[tuple[str, int]] = []
        self._in_text: list[tuple[str, int]] = []
        self._in_tables: list[tuple[str, int]] = []
        self.visit(tree)

    def patterns(self, top: str) -> list[tuple[str, int]]:
        """Each with its line; those of tables are below the package ``top``."""
        named = self._in_calls + (self._in_text if self.by_variable else self._relative())
        below = [(text, line) for text, line in named if text.startswith((".", f"{top}."))]
        return below + [(f"{top}.{text}", line) for text, line in self._in_tables]

    def _relative(self) -> list[tuple[str, int]]:
        return [(text, line) for text, line in self._in_text if text.startswith(".")]

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name in _TABLES:
            for each in ast.walk(node):
                places = each.values if isinstance(each, ast.Dict) else []
                self._in_tables += [part for place in places for part in _pattern(place)]
        elif name in _LOADERS and node.args:
            patterns = list(_pattern(node.args[0]))
            self.by_variable |= not patterns
            self._in_calls += patterns
        elif name != _REGISTERED:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._in_text += _pattern(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text for people; as a module's name it is the argument of a call."""

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        for each in node.orelse if _for_types(node) else ast.iter_child_nodes(node):
            self.visit(each)


def _pattern(node: ast.expr) -> Iterator[tuple[str, int]]:
    """A module's name of a string: ``a.b`` of ``"a.b:attribute"``, ``a.*_b`` of ``f"a.{x}_b"``."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    known = [str(part.value) if isinstance(part, ast.Constant) else None for part in parts]
    text = "".join("*" if part is None else part.replace("*", "?") for part in known)
    if isinstance(node, ast.Constant | ast.JoinedStr) and _PATH.fullmatch(text):
        yield text.partition(":")[0], node.lineno


def _that_runs(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and _for_types(node):
            for each in node.orelse:
                yield from (each, *_that_runs(each))
        else:
            yield from (node, *_that_runs(node))


def _for_types(node: ast.If) -> bool:
    return _name(node.test) == "TYPE_CHECKING"


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
