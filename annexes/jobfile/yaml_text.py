"""YAML as plain data with the place of every value. Pure: text in, data out.

Plain scalars are read as YAML 1.2 and JSON read them: ``no``, ``on`` and ``1:30`` are text, ``010``
is ten. PyYAML's own constructors read YAML 1.1, in which they are false, true, ninety and eight.
Some values are text whatever they look like (an argument ``1e3``, a variable ``yes``): the caller
says which, and they are taken as they are written.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...core.errors import ConfigurationError

Path = tuple[str | int, ...]

_MOST_NODES = 20_000  # aliases of aliases would make a small file a large one
_MOST_LEVELS = 50
_MOST_CHARACTERS = 1_000_000
MOST_BYTES = 4 * _MOST_CHARACTERS
"""No text of so many characters has more in UTF-8."""


@dataclass(frozen=True, slots=True)
class TextPosition:
    """Position in a text; both numbers count from one."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """A YAML document.

    Attributes:
        name: Name of the file, for messages.
        lines: Lines of its text.
        data: Mappings, lists and scalars.
        values: Position of each value by its path, e.g. ``("roles", "ps", "count")``.
        keys: Position of each mapping's key, by the path of its value.
    """

    name: str
    lines: list[str]
    data: Any = None
    values: dict[Path, TextPosition] = field(default_factory=dict)
    keys: dict[Path, TextPosition] = field(default_factory=dict)

    def place(self, path: Path, *, of_key: bool = False) -> TextPosition:
        """Find where ``path`` is written; if it is not, where the nearest one above it is."""
        first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
        for length in range(len(path), -1, -1):
            position = first.get(path[:length]) or second.get(path[:length])
            if position is not None:
                return position
        return TextPosition(1, 1)

    def problem(self, place: TextPosition, text: str) -> str:
        """Write a message as compilers do: the place, the text, the line, and a mark below."""
        message = f"{self.name}:{place.line}:{place.column}: {text}"
        if not 0 < place.line <= len(self.lines):
            return message
        line = self.lines[place.line - 1].replace("\t", " ")
        start = max(0, place.column - 60)
        return f"{message}\n    {line[start : start + 90]}\n    {' ' * (place.column - 1 - start)}^"


def read_yaml(text: str, name: str, is_text: Callable[[Path], bool]) -> Document:
    """Parse one document.

    Args:
        text: YAML, or JSON.
        name: Name of the file, for messages.
        is_text: Whether the scalar at a path is read as text.

    Raises:
        ConfigurationError: It is not YAML, is too large or has a key twice; names the position.
    """
    document = Document(name, text.splitlines())
    if len(text) > _MOST_CHARACTERS:
        raise ConfigurationError(
            f"{name} has {len(text)} characters; a job file has at most {_MOST_CHARACTERS}"
        )
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = TextPosition(mark.line + 1, mark.column + 1) if mark else TextPosition(1, 1)
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise _refused(document, place, f"this is no YAML: {words}{_hint(document, place)}") from (
            error
        )
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: this is no YAML: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: it is nested too deeply to be read") from error
    if root is not None:
        document.data = _Reader(document, is_text).value(root, ())
    return document


class _Reader:
    def __init__(self, document: Document, is_text: Callable[[Path], bool]) -> None:
        self._document = document
        self._is_text = is_text
        self._nodes = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        place = _place(node)
        self._document.values[path] = place
        self._nodes += 1
        if self._nodes > _MOST_NODES or len(path) > _MOST_LEVELS:
            raise _refused(
                self._document,
                place,
                f"more than {_MOST_NODES} values, or {_MOST_LEVELS} levels; an alias that is used "
                "inside itself has no end",
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._check_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = _place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refused(self._document, place, "a key must be a word")
            key = str(key_node.value)
            where = (*path, key)
            if key == "<<":
                raise _refused(
                    self._document, place, "merge keys are not read; write the fields out"
                )
            if key in result:
                first = self._document.keys[where]
                raise _refused(
                    self._document,
                    place,
                    f"{key} is here a second time, after line {first.line}; keep one",
                )
            self._document.keys[where] = place
            result[key] = self.value(value_node, where)
        return result

    def _check_tag(self, node: yaml.Node) -> None:
        prefix, _, kind = node.tag.rpartition(":")
        if prefix != "tag:yaml.org,2002" or kind not in _TAGS:
            raise _refused(self._document, _place(node), f"a tag ({node.tag}) has no meaning here")

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        self._check_tag(node)
        text = str(node.value)
        if "\0" in text:
            raise _refused(
                self._document,
                _place(node),
                "a NUL can be in no path, argument or variable; take it out",
            )
        if node.style is not None or self._is_text(path):
            return text
        return _plain(text)


# What PyYAML finds in values without one.
_TAGS = ("str", "int", "float", "bool", "null", "timestamp", "value", "map", "seq")
_WORDS: dict[str, Any] = {"": None, "~": None}
for _word, _meaning in (("null", None), ("true", True), ("false", False)):
    _WORDS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), _meaning)
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


def _plain(text: str) -> Any:
    """Read a plain scalar by the core schema of YAML 1.2, without its octal and hexadecimal
    numbers.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def _place(node: yaml.Node) -> TextPosition:
    mark = node.start_mark
    return TextPosition(mark.line + 1, mark.column + 1)


def _refused(document: Document, place: TextPosition, text: str) -> ConfigurationError:
    return ConfigurationError(document.problem(place, text), line=place.line, column=place.column)


def _hint(document: Document, place: TextPosition) -> str:
    line = document.lines[place.line - 1] if 0 < place.line <= len(document.lines) else ""
    if "\t" in line[: place.column + 1]:
        return "; indent with spaces, not with tabs"
    if "{" in line or ": " in line:
        return "; quote text with ': ' or braces in it"
    return ""


# -- Plain data as YAML that every parser reads alike. Pure ------------------------------------

# Booleans of YAML 1.1 that PyYAML writes plain and other parsers may read as such.
_QUOTED = frozenset({"y", "Y", "n", "N"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Return True: anchors save lines and cost readers."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if text in _QUOTED else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump_yaml(data: Any) -> str:
    """Write a document, keys in the order given."""
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=96,
    )
    return text


def dump_documents(documents: Iterable[Any]) -> str:
    """Write several documents, each behind a ``---``."""
    return "".join(f"---\n{dump_yaml(document)}" for document in documents)
