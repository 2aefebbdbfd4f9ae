"""The names of ``tf.distribute``, and what became of each here: ``docs/tf-distribute.md``.

Beside this file are two others that the page is made of:

- ``tf_names.json``: TensorFlow's public names with their kinds and parameters. ``--dump`` writes
it; that
  alone needs TensorFlow (``make parity`` has it).
- ``tf_notes.toml``, written by hand: what differs, and what to use instead of what is not here.

Without ``--dump`` every name is looked up in ropewalk and the page is written. A name that is here,
takes the parameters TensorFlow's takes and has no note, is "same"; any other must have a note. So
the page cannot promise what is not there, and no name is forgotten. ``--check`` writes nothing and
fails if the file that would be written is stale.
"""

import argparse
import dataclasses
import importlib
import inspect
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ropewalk.core.public_face import Instead

ROOT = Path(__file__).resolve().parent.parent
NAMES = ROOT / "tools" / "tf_names.json"
NOTES = ROOT / "tools" / "tf_notes.toml"
PAGE = ROOT / "docs" / "tf-distribute.md"

# Walked with everything public in them.
ROOTS = ("tf.distribute", "tf.compat.v1.distribute")
# Elsewhere in TensorFlow, but part of programs that use it.
RELATED = (
    "tf.IndexedSlices",
    "tf.Variable",
    "tf.VariableAggregation",
    "tf.VariableSynchronization",
    "tf.compat.v1.VariableAggregation",
    "tf.compat.v1.VariableSynchronization",
    "tf.compat.v1.train.Server",
    "tf.compat.v1.train.replica_device_setter",
    "tf.config.LogicalDevice",
    "tf.config.LogicalDeviceConfiguration",
    "tf.config.experimental.ClusterDeviceFilters",
    "tf.config.experimental_connect_to_cluster",
    "tf.config.experimental_connect_to_host",
    "tf.config.get_logical_device_configuration",
    "tf.config.list_logical_devices",
    "tf.config.list_physical_devices",
    "tf.config.set_logical_device_configuration",
    "tf.config.set_visible_devices",
    "tf.data.AUTOTUNE",
    "tf.data.Dataset",
    "tf.data.INFINITE_CARDINALITY",
    "tf.data.Options",
    "tf.data.UNKNOWN_CARDINALITY",
    "tf.data.experimental.AutoShardPolicy",
    "tf.data.experimental.DistributeOptions",
    "tf.data.experimental.SHARD_HINT",
    "tf.device",
    "tf.experimental.Optional",
    "tf.nn.compute_average_loss",
    "tf.nn.scale_regularization_loss",
    "tf.random.Generator",
    "tf.train.Checkpoint",
    "tf.train.CheckpointManager",
    "tf.train.CheckpointOptions",
    "tf.train.CheckpointView",
    "tf.train.ClusterSpec",
    "tf.train.ExponentialMovingAverage",
    "tf.train.checkpoints_iterator",
    "tf.train.get_checkpoint_state",
    "tf.train.latest_checkpoint",
    "tf.train.list_variables",
    "tf.train.load_checkpoint",
    "tf.train.load_variable",
    "tf.types.experimental.distributed.Mirrored",
    "tf.types.experimental.distributed.PerReplica",
    "tf.variable_creator_scope",
)
# Too wide to be listed: what concerns distribution has a row of its own.
WITHOUT_MEMBERS = ("tf.data.Options", "tf.train.CheckpointManager")

# Where TensorFlow's modules are here, the longest first.
MODULES = {
    "tf.types.experimental.distributed": "ropewalk.distribute",
    "tf.data.experimental": "ropewalk.data.experimental",
    "tf.compat.v1.distribute": "ropewalk.distribute",
    "tf.compat.v1.train": "ropewalk.train",
    "tf.compat.v1": "ropewalk",
    "tf.train": "ropewalk.train",
    "tf": "ropewalk",
}


# -- TensorFlow's names -----------------------------------------------------------------------


def dump() -> dict[str, Any]:
    """TensorFlow's public names: kind, signature, public base class, or the name it is an
    alias of.
    """
    import tensorflow as tf

    found: dict[str, Any] = {}
    for root in ROOTS:
        found.update(_walk(root, _resolve(tf, root)))
    for path in RELATED:
        found[path] = _resolve(tf, path)
    names: dict[str, dict[str, Any]] = {}
    owners: dict[int, str] = {}

    def rank(path: str) -> tuple[Any, ...]:
        """An object of several names goes by its newest, its shortest, its own."""
        own = getattr(found[path], "__name__", "") == path.rpartition(".")[2]
        return path.startswith("tf.compat"), path.count("."), not own, path

    for path in sorted(found, key=rank):
        value = found[path]
        if inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, ModuleType):
            owner = owners.setdefault(id(value), path)
            if owner != path:
                names[path] = {"kind": "alias", "of": owner}
                continue
        names[path] = _describe(value)
    classes = {path: value for path, value in found.items() if names[path]["kind"] == "class"}
    for path, cls in classes.items():
        base = _base(cls, classes)
        if base:
            names[path]["base"] = base
        if path in WITHOUT_MEMBERS:
            continue
        for member, value in _members(cls, classes.get(base or "")):
            names[f"{path}.{member}"] = _describe_member(cls, member, value)
    version = ".".join(tf.__version__.split(".")[:2])
    return {"tensorflow": version, "names": dict(sorted(names.items()))}


def _resolve(tf: Any, path: str) -> Any:
    value = tf
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def _walk(path: str, module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in dir(module):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        yield f"{path}.{name}", value
        if isinstance(value, ModuleType):
            yield from _walk(f"{path}.{name}", value)


def _base(cls: type, classes: dict[str, type]) -> str | None:
    """The nearest base class that has a name of its own."""
    for base in cls.__mro__[1:]:
        for path, other in classes.items():
            if other is base:
                return path
    return None


def _members(cls: type, base: type | None) -> Iterator[tuple[str, Any]]:
    """Public attributes that are not those of the base, of ``object`` or of ``tuple``."""
    for name in dir(cls):
        if name.startswith("_") or (issubclass(cls, tuple) and hasattr(tuple, name)):
            continue
        value = inspect.getattr_static(cls, name)
        if base is not None and inspect.getattr_static(base, name, None) is value:
            continue
        if any(hasattr(plain, name) for plain in _plain_bases(cls)):
            continue
        yield name, value


def _plain_bases(cls: type) -> Iterator[type]:
    """Bases from Python itself, whose attributes are nobody's API: of enumerations, for one."""
    return (
        base for base in cls.__mro__ if base.__module__ in ("builtins", "enum", "abc", "typing")
    )


def _describe(value: Any) -> dict[str, Any]:
    if isinstance(value, ModuleType):
        return {"kind": "module"}
    if inspect.isclass(value):
        return {"kind": "class", "signature": signature_of(value)}
    if callable(value):
        return {"kind": "function", "signature": signature_of(value)}
    return {"kind": "constant"}


def _describe_member(cls: type, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, staticmethod | classmethod) or inspect.isroutine(value):
        return {"kind": "method", "signature": signature_of(getattr(cls, name), bound=value)}
    if inspect.isclass(value):
        return {"kind": "class"}
    return {"kind": "attribute"}


def signature_of(value: Any, bound: Any = None) -> list[str] | None:
    """Parameters but ``self`` as text: ``name``, ``name=`` with a default, ``*name``, ``**name``.

    Keyword-only ones follow a ``*``. None: it has none to speak of (enumerations).
    """
    if inspect.isclass(value):
        if any(base.__name__ == "Enum" for base in value.__mro__):
            return None
        value = value.__init__ if value.__init__ is not object.__init__ else value.__new__
        first = 1
    else:
        takes_self = inspect.isfunction(value) and bound is not None
        first = 1 if takes_self and not isinstance(bound, staticmethod) else 0
    try:
        parameters = list(inspect.signature(value).parameters.values())[first:]
    except (TypeError, ValueError):
        return None
    told, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            told.append(f"*{parameter.name}")
            starred = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            told.append(f"**{parameter.name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not starred:
                told.append("*")
                starred = True
            told.append(parameter.name + ("" if parameter.default is parameter.empty else "="))
    return told


# -- what became of them here -----------------------------------------------------------------

SAME, DIFFERS, LATER, NO = "same", "differs", "later", "no"


class Problem(Exception):  # noqa: N818 - what is wrong with the notes, not with the program
    """The notes and the namespaces do not fit."""


@dataclasses.dataclass(frozen=True)
class Note:
    """What was written by hand about a name.

    Attributes:
        state: "differs", "later" or "no".
        text: How it differs, or what to use instead.
        here: Its name here, if not TensorFlow's.
    """

    state: str
    text: str
    here: str | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """What became of a name.

    Attributes:
        state: "same", "differs", "later" or "no".
        text: See :class:`Note`.
        here: Its name here.
    """

    state: str
    text: str
    here: str

    @property
    def is_here(self) -> bool:
        """Whether it can be used."""
        return self.state in (SAME, DIFFERS)


def read_notes(text: str) -> dict[str, Note]:
    """The notes by name.

    Raises:
        Problem: A name has two.
    """
    notes: dict[str, Note] = {}
    for entry in tomllib.loads(text)["note"]:
        for name in entry["names"].split():
            path = f"{entry['of']}.{name}"
            if path in notes:
                raise Problem(f"{path} has two notes")
            notes[path] = Note(entry["state"], entry.get("note", ""), entry.get("here"))
    return notes


def states_of(names: dict[str, Any], notes: dict[str, Note]) -> dict[str, State]:
    """The state of every name; members of an absent class or module share its state.

    Raises:
        Problem: A name that is not here, or that differs, has no note; or a note fits no name.
    """
    problems = [f"{path} has a note, and is no name" for path in notes if path not in names]
    states: dict[str, State] = {}
    # Other names of the same thing after what they are names of; owners come before what they own.
    for path in sorted(names, key=lambda path: (names[path]["kind"] == "alias", path)):
        described, note = names[path], note_of(path, names, notes)
        owner = path.rpartition(".")[0]
        if owner in states and not states[owner].is_here:
            states[path] = states[owner]
            if path in notes:
                problems.append(f"{path} has a note, and {owner} is not here")
            continue
        if described["kind"] == "alias":
            same = states[described["of"]]
            states[path] = State(same.state, "", here_of(path))
            if path in notes:
                problems.append(f"{path} has a note, and is another name of {described['of']}")
            if same.is_here and find(here_of(path)) is not find(same.here):
                problems.append(f"{here_of(path)} is not {same.here}")
            continue
        member = names.get(owner, {}).get("kind") == "class"
        here = f"{states[owner].here}.{path.rpartition('.')[2]}" if member else here_of(path)
        here = note.here if note is not None and note.here else here
        state = State(note.state if note else SAME, note.text if note else "", here)
        states[path] = state
        why = difference(described, here)
        if not state.is_here and find(here) is not None:
            problems.append(f"{path} is here, and its note says {state.state!r}")
        if state.is_here and find(here) is None:
            problems.append(f"{path}: there is no {here}")
        elif state.state == SAME and why:
            problems.append(f"{path}: {here} {why}; it needs a note")
    if problems:
        raise Problem("\n".join(problems))
    return states


def note_of(path: str, names: dict[str, Any], notes: dict[str, Note]) -> Note | None:
    """A name's note: its own; of a method, its base class's; of ``compat.v1``, the newer name's."""
    if path in notes:
        return notes[path]
    owner, _, name = path.rpartition(".")
    others = [path.replace("tf.compat.v1.", "tf.", 1)]
    if "base" in names.get(owner, {}):
        others.append(f"{names[owner]['base']}.{name}")
    for other in others:
        note = note_of(other, names, notes) if other != path and other in names else None
        if note is not None:
            seen = (
                other if names.get(owner, {}).get("kind") != "class" else other.rpartition(".")[0]
            )
            return Note(note.state, note.text if note.text.startswith("See ") else f"See `{seen}`.")
    return None


def here_of(path: str) -> str:
    """Where a name of TensorFlow is expected here."""
    for module, ours in MODULES.items():
        if path.startswith(module + "."):
            return ours + path.removeprefix(module)
    raise Problem(f"{path} is in none of the modules")


def find(path: str) -> Any:
    """What has this name in ropewalk; None if nothing has, or if it says what to use instead."""
    value: Any = importlib.import_module("ropewalk")
    for part in path.split(".")[1:]:
        fields = getattr(value, "__dataclass_fields__", {}) if inspect.isclass(value) else {}
        if part in fields:
            value = fields[part]
            continue
        try:
            # As it was written: a property, not what it gives; a static method, not its function.
            value = (inspect.getattr_static if inspect.isclass(value) else getattr)(value, part)
        except (AttributeError, ImportError):
            return None
    return None if isinstance(value, Instead) else value


def difference(described: dict[str, Any], here: str) -> str | None:
    """Why what is ``here`` cannot be used as TensorFlow's name; None: it can."""
    value = find(here)
    kind = described["kind"]
    if value is None:
        return "is not there"
    if isinstance(value, ModuleType) != (kind == "module"):
        return f"is no {kind}"
    if kind == "constant":
        return None
    if kind == "attribute":
        return "must be called" if inspect.isroutine(value) else None
    base = find(here_of(described["base"])) if described.get("base") else None
    if base is not None and not (inspect.isclass(value) and issubclass(value, base)):
        return f"is no subclass of {base.__name__}"
    plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if kind != "module" and not callable(plain):
        return "cannot be called"
    ours = signature_of(plain, bound=value if kind == "method" else None)
    return refusal(described.get("signature"), ours)


def refusal(theirs: Sequence[str] | None, ours: Sequence[str] | None) -> str | None:
    """Why a call that TensorFlow takes is not taken here; None: every one is.

    Both as :func:`signature_of` gives them. ``**kwargs`` alone is what TensorFlow's classes have
    whose objects nobody makes, and that of ours are not compared.
    """
    if theirs is None or ours is None or list(theirs) == ["**kwargs"]:
        return None
    if any(name.startswith("*") and name != "*" for name in theirs):
        starred = any(name.startswith("*") and name != "*" for name in ours)
        return None if starred else "takes no *args"
    plain = [name.rstrip("=") for name in ours if not name.startswith("*")]
    keyword_only = ours.index("*") if "*" in ours else len(plain)
    for place, name in enumerate(theirs):
        bare = name.rstrip("=")
        if bare not in plain:
            return f"has no parameter {bare!r}"
        if plain.index(bare) != place or place >= keyword_only:
            return f"parameter {bare!r} has another place"
        if name.endswith("=") and not ours[place].endswith("="):
            return f"parameter {bare!r} must be given"
    needed = [n for n in ours[len(theirs) :] if not n.endswith("=") and not n.startswith("*")]
    return f"parameters {needed} must be given" if needed else None


# -- the page ---------------------------------------------------------------------------------

_SECTIONS = (
    "tf.distribute",
    "tf.distribute.experimental",
    "tf.distribute.experimental.partitioners",
    "tf.distribute.cluster_resolver",
    "tf.distribute.coordinator",
    "tf.distribute.experimental.coordinator",
    "tf.distribute.experimental.rpc",
    "tf.compat.v1.distribute",
    "tf.compat.v1.distribute.experimental",
    "tf.compat.v1.distribute.cluster_resolver",
)
_ELSEWHERE = "Elsewhere in TensorFlow"

_HEAD = """\
# The names of tf.distribute

Every public name of `tf.distribute` and `tf.compat.v1.distribute` in TensorFlow {version}, and what
belongs to them elsewhere, with its state here. `tf.distribute.X` is `rw.distribute.X`, after
`import ropewalk as rw`; where another module has a name, its row says so.

- **same**: here, and takes what TensorFlow's takes.
- **differs**: here; the note says what is not the same.
- **later**: not here yet.
- **no**: not planned; the note says what to use.

Of {total} names {same} are the same, {differs} differ, {later} come later and {no} are not planned.

Arrays are NumPy's (on a GPU CuPy's), not tensors; programs run as Python, without graphs, sessions
or `tf.function`. Errors are of the same built-in kind; InvalidArgumentError and DataLossError are
ValueError. Where an argument of a wrong type is an AssertionError, AttributeError or IndexError
inside TensorFlow, it is a TypeError or ValueError here that names it.
A parameter with `=` has a default. What a class inherits is listed where it comes from.

`tools/tf_names.py` writes this page out of TensorFlow's namespace, ours and `tools/tf_notes.toml`;
`make parity` runs the same programs under both.
"""


def render(dumped: dict[str, Any], notes: dict[str, Note]) -> str:
    """The page."""
    names = dumped["names"]
    states = states_of(names, notes)
    counts = dict.fromkeys((SAME, DIFFERS, LATER, NO), 0)
    for state in states.values():
        counts[state.state] += 1
    parts = [_HEAD.format(version=dumped["tensorflow"], total=len(names), **counts)]
    tops: dict[str, list[str]] = {section: [] for section in (*_SECTIONS, _ELSEWHERE)}
    for path, described in names.items():
        owner = path.rpartition(".")[0]
        if names.get(owner, {}).get("kind") != "class" and described["kind"] != "module":
            tops[owner if owner in tops else _ELSEWHERE].append(path)
    for section, paths in tops.items():
        lines = [f"\n## {section}\n"]
        if section in notes:
            lines.append(f"{notes[section].text}\n")
            states |= {path: State(states[path].state, "", "") for path in paths}
        lines += ["| name | state | |", "|---|---|---|"]
        for path in paths:
            if names[path]["kind"] != "alias":
                lines += _rows(path, section == _ELSEWHERE, names, states)
        lines += _alias_rows(
            [path for path in paths if names[path]["kind"] == "alias"], names, states
        )
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _rows(path: str, full: bool, names: dict[str, Any], states: dict[str, State]) -> Iterator[str]:
    """The row of a name; of a class also one for its members of each state and note."""
    described, state = names[path], states[path]
    signature = described.get("signature")
    told = "" if signature in (None, ["**kwargs"]) else f"({', '.join(signature)})"
    title = f"`{path if full else path.rpartition('.')[2]}{told}`"
    if described.get("base"):
        title += f", a `{described['base'].rpartition('.')[2]}`"
    moved = state.here.replace("ropewalk", "rw", 1)
    if full and state.is_here and moved != path.replace("tf", "rw", 1):
        title += f", here `{moved}`"
    members = [name for name in names if name.rpartition(".")[0] == path]
    if not state.is_here:
        own = ", ".join(f"`{name.rpartition('.')[2]}`" for name in members)
        yield _row(title + (f" with {own}" if own else ""), state)
        return
    yield _row(title, state)
    groups: dict[State, list[str]] = {}
    for name in members:
        key = State(states[name].state, states[name].text, "")
        groups.setdefault(key, []).append(name.rpartition(".")[2])
    for key in sorted(groups, key=lambda key: (SAME, DIFFERS, LATER, NO).index(key.state)):
        short = path.rpartition(".")[2]
        yield _row(f"{short}: " + ", ".join(f"`{name}`" for name in groups[key]), key)


def _alias_rows(
    paths: Sequence[str], names: dict[str, Any], states: dict[str, State]
) -> Iterator[str]:
    """Other names of the same thing: one row for those of one module and state."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        module, _, name = names[path]["of"].rpartition(".")
        own = path.rpartition(".")[2]
        told = f"`{own}`" if own == name else f"`{own}` (there `{name}`)"
        told = told if path.rpartition(".")[0] in _SECTIONS else f"`{path}`"
        groups.setdefault((states[path].state, module), []).append(told)
    for (state, module), titles in groups.items():
        yield _row(", ".join(titles), State(state, f"See `{module}`.", ""))


def _row(title: str, state: State) -> str:
    return f"| {title} | {state.state} | {state.text} |"


def main() -> int:
    """Write or check; the exit status is 1 if something is stale or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dump", action="store_true", help="write tf_names.json; needs TensorFlow")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    options = parser.parse_args()
    try:
        if options.dump:
            path, new = NAMES, json.dumps(dump(), indent=1) + "\n"
        else:
            path, new = PAGE, render(json.loads(NAMES.read_text()), read_notes(NOTES.read_text()))
    except Problem as problem:
        print(problem)
        return 1
    if path.exists() and path.read_text() == new:
        print(f"{path.name} is fresh")
        return 0
    again = f"{Path(__file__).name} --dump" if options.dump else Path(__file__).name
    print(f"stale: {path.name}; run tools/{again}" if options.check else f"wrote: {path.name}")
    if not options.check:
        path.write_text(new)
    return 1 if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
