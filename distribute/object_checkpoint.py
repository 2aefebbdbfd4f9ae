"""Checkpoints of a program's objects, as ``tf.train.Checkpoint`` has them: ``rw.train.Checkpoint``.

Variables go by the attributes that lead to them (``object_tree.py``), so two models in one process
do not get in each other's way. Checkpoints of a job on parameter servers go by variables' names:
``rw.Checkpoint`` reads those.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic_core import PydanticSerializationError, to_json

from ..core.checkpoint import CheckpointReader
from ..core.errors import CheckpointError, ConfigurationError
from .base.contexts import default_strategy, require_cross_replica
from .base.values import DistributedValues
from .object_tree import ObjectTree, walk_objects
from .saved_variables import Stateful, capture, restore_variables, saved_value, write_variables

_VALUES = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)


class LoadStatus:
    """The match of a restored checkpoint and the objects, as ``tf.train``'s. As ``tf.train``'s.

    Args:
        path: Path of the checkpoint; None if there was none.
        unused: Keys in the checkpoint that no object has.
        missing: Keys of objects that are not in the checkpoint.
    """

    def __init__(self, path: str | None, unused: list[str], missing: list[str]) -> None:
        self._path, self._unused, self._missing = path, unused, missing

    def assert_existing_objects_matched(self) -> "LoadStatus":
        """Raise unless everything that the objects have was in the checkpoint.

        Raises:
            AssertionError: Names the keys that were not.
        """
        if self._path is None:
            raise AssertionError("no checkpoint was restored")
        if self._missing:
            raise AssertionError(f"{self._path} has no {', '.join(self._missing)}")
        return self

    def assert_consumed(self) -> "LoadStatus":
        """Raise unless checkpoint and objects have the same keys.

        Raises:
            AssertionError: Names the keys that only one of them has.
        """
        self.assert_existing_objects_matched()
        if self._unused:
            raise AssertionError(f"{self._path} has {', '.join(self._unused)}, no object has")
        return self

    def assert_nontrivial_match(self) -> "LoadStatus":
        """Return at once: a checkpoint with nothing for the objects is an error before."""
        return self

    def expect_partial(self) -> "LoadStatus":
        """Do nothing: keys that do not match are not reported."""
        return self


class ObjectCheckpoint:
    """Saves and restores the variables of objects. As ``tf.train.Checkpoint``.

    It saves the variables in attributes, dictionaries, lists and tuples of the objects; objects
    there that have ``state_dict`` and ``load_state_dict`` (iterators, random generators); and the
    arrays of an ``ArrayStore`` or of a bridge (``TrainState``, ``DistributedOptimizer``, a compiled
    model of Keras), by their names. Slots of optimizers are saved with their variables; those
    on parameter servers are in the job's own checkpoints only. Synchronous workers save and restore
    together, and the first one writes; in a parameter-server job the chief does.

    The objects are attributes of the checkpoint, and one that is assigned is saved, too.

    Args:
        root: An object whose attributes are the first part of keys, or another checkpoint; None if
            there is none.
        objects: Other objects by name, e.g. ``model=model``.

    Raises:
        ValueError: ``root`` has an attribute of the same name as one of ``objects``; an object is a
            number, text or array, which holds no variable; or variables belong to several
            strategies, which is noticed when the checkpoint is used.
    """

    def __init__(self, root: Any = None, **objects: Any) -> None:
        taken = sorted(set(_attributes(root)) & set(objects))
        if taken:
            raise ValueError(f"root has an attribute {taken[0]!r}, too; give it another name")
        for name, thing in objects.items():
            if isinstance(thing, _VALUES):
                raise ValueError(
                    f"{name}={thing!r} is a {type(thing).__name__}, and a checkpoint has variables "
                    "and objects that hold some; make it a rw.Variable"
                )
        self._root, self._objects = root, dict(objects)
        self._saves = 0

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_objects"][name]
        except KeyError:
            raise AttributeError(f"this checkpoint has no object {name!r}", name=name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            self._objects[name] = value

    @property
    def checkpointed(self) -> dict[str, Any]:
        """The objects, and attributes of ``root``, by the first part of their keys."""
        return {**_attributes(self._root), **self._objects}

    @property
    def save_counter(self) -> int:
        """The number of the checkpoint that was saved or restored last; can be set."""
        return self._saves

    @save_counter.setter
    def save_counter(self, number: int) -> None:
        self._saves = number

    def save(self, file_prefix: str) -> str:
        """Write ``<file_prefix>-<number>``, one higher than the last number; return its path.

        Raises:
            ConfigurationError: The objects have nothing to save.
            RuntimeError: It was called in replica context.
            ValueError: An ON_READ variable without aggregation has no value to save.
            OSError: The file system refused.
        """
        self.save_counter = self.agreed(self.save_counter + 1)
        return self.write(f"{file_prefix}-{self.save_counter}")

    def write(self, file_prefix: str) -> str:
        """Write a checkpoint under exactly this path; raises what :meth:`save` raises."""
        tree, strategy = self._to_save()
        require_cross_replica(strategy, "Checkpoint.write")
        self._require_any(tree)
        values = {key: saved_value(variable) for key, variable in tree.variables.items()}
        if strategy.should_save:
            saved = {key: capture(tree.variables[key], value) for key, value in values.items()}
            write_variables(file_prefix, saved, tree.places, self.save_counter)
        strategy.extended.any_worker(True)  # synchronous workers wait until it is written
        return file_prefix

    def restore(self, save_path: str | None) -> LoadStatus:
        """Set the objects to their values in a checkpoint, and go on counting from its number.

        Variables that are made later are not restored: restore when the model is built.

        Args:
            save_path: Path of the checkpoint; None restores nothing, as before the first one.

        Raises:
            CheckpointError: The checkpoint is missing or damaged, or has nothing for these objects.
            ConfigurationError: The objects have nothing to restore.
            ShapeMismatchError: A variable has another shape in the checkpoint.
        """
        status = self.read(save_path)
        if save_path is not None:
            self.save_counter = CheckpointReader(save_path).manifest.global_step
        return status

    def read(self, save_path: str | None) -> LoadStatus:
        """Restore as :meth:`restore` does, without changing :attr:`save_counter`."""
        tree, strategy = self._to_save()
        require_cross_replica(strategy, "Checkpoint.restore")
        keys = [*tree.variables, *tree.places]
        if save_path is None:
            return LoadStatus(None, [], keys)
        self._require_any(tree)
        reader = CheckpointReader(save_path)
        stored = [*reader.manifest.variables, *reader.manifest.places]
        if keys and not set(keys) & set(stored):
            raise CheckpointError(
                f"{reader.path} has nothing for these objects ({_some(keys)}): it has "
                f"{_some(stored)}. A job's checkpoint, which goes by variables' names, is restored "
                "with rw.Checkpoint(variables)",
                path=reader.path,
            )
        matched = set(restore_variables(reader, tree.variables, tree.places))
        for refresh in tree.refresh:
            refresh()
        return LoadStatus(
            reader.path,
            [key for key in stored if key not in matched],
            [key for key in keys if key not in matched],
        )

    def _require_any(self, tree: ObjectTree) -> None:
        """Refuse objects that have nothing to save, rather than write an empty checkpoint.

        Raises:
            ConfigurationError: There are objects, and none has a variable; or the state of one has
                arrays.
        """
        objects = self.checkpointed
        if objects and not (tree.variables or tree.places):
            named = [f"{name} ({type(thing).__name__})" for name, thing in objects.items()]
            raise ConfigurationError(
                f"a checkpoint of {_some(named)} would be empty: none has a variable of a "
                "strategy. A model of Keras has some once it is compiled in the scope and built, "
                "and an optimizer of Keras in a loop of the program's from its first step on; what "
                "no strategy shares is saved by the framework itself"
            )
        for key, place in tree.places.items():
            _require_json(key, place)

    def _to_save(self) -> tuple[ObjectTree, Any]:
        """Collect the variables and objects to save, and the strategy that they belong to."""
        tree = walk_objects(self.checkpointed)
        default: Any = default_strategy()
        strategies = {id(v.strategy): v.strategy for v in tree.variables.values()}
        strategies.pop(id(default), None)
        if len(strategies) > 1:
            raise ValueError("the variables of one checkpoint belong to one strategy")
        return tree, next(iter(strategies.values()), default)

    def agreed(self, number: int) -> int:
        """Agree on the number that the first synchronous worker has; others may see the directory
        later.
        """
        mine = DistributedValues([np.array(number, np.int64)])
        return int(self._to_save()[1].extended.of_first_replica(mine))

    def any_worker(self, mine: bool) -> bool:
        """Return whether ``mine`` is true on any synchronous worker; all of them call this."""
        return bool(self._to_save()[1].extended.any_worker(mine))

    @property
    def writes(self) -> bool:
        """Whether this task is the one that writes."""
        return bool(self._to_save()[1].should_save)


def _require_json(key: str, place: Stateful) -> None:
    """Refuse an object whose state is more than its place, such as a module of PyTorch."""
    try:
        to_json(dict(place.state_dict()))
    except PydanticSerializationError as error:
        raise ConfigurationError(
            f"a checkpoint of {key} ({type(place).__name__}) would be without its arrays: a state "
            f"is kept as JSON ({error}). Give what a strategy shares of it, such as its "
            "DistributedOptimizer or the model that was compiled in the scope; what no strategy "
            "shares is saved by the framework itself"
        ) from None


def _attributes(root: Any) -> Mapping[str, Any]:
    """Collect the attributes of ``root`` that are the first part of keys."""
    if root is None:
        return {}
    if isinstance(root, ObjectCheckpoint):
        return root.checkpointed
    attributes: Mapping[str, Any] = getattr(root, "__dict__", {"root": root})
    return attributes


def _some(keys: list[str]) -> str:
    return ", ".join(sorted(keys)[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
