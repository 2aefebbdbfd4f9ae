"""JAX: a tree of parameters that all workers share, with an optax optimizer.

The program's functions stay as they are: parameters come out as a tree of JAX arrays, gradients go
in as such a tree. What is kept of them is NumPy arrays, read-only, so a program may donate what it
was given to a jitted function: the next look at ``params`` makes new ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..distribute.base.contexts import is_running
from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.strategy import Strategy
from .array_store import ArrayStore, Kept
from .extras import require
from .jax_arrays import name_of, on_device, start_copies
from .jax_averages import JaxAverages
from .kept_state import KeptState, can_keep
from .optax_reading import place_transformation
from .own_optimizer import Deltas, choose_place
from .rule_table import OnServer, OnWorker

__all__ = ["TrainState"]


class TrainState:
    """Parameters under a strategy, and how they are updated. Named as Flax's class of this use.

    ::

        state = wl.training.jax.TrainState(params, optax.adam(1e-3), strategy)
        for batch in batches:
            loss, gradients = loss_and_gradients(state.params, batch)
            state.apply_gradients(gradients)

    In ``strategy.run`` reading ``params`` and ``apply_gradients`` are parts of the step; outside
    ``apply_gradients`` is a step, in one round trip. An optimizer that has a rule
    (docs/bridges.md) runs on the servers, any other on this worker, whose changes are pushed as
    deltas.

    Args:
        params: A pytree of any registered kind: dicts, dataclasses, ``nnx.State``, Equinox modules.
            Its floating-point arrays are shared; other leaves stay as they are.
        optimizer: An optax transformation.
        strategy: Where they live; None: the current one.
        deltas: Whether the optimizer may run on the worker: ``allow`` it if it has no rule,
            ``forbid`` it, or ``always``.
        mean: Gradients of replicas in sync are averaged; False: added up.
        name: Comes first in the names of the arrays.
        averages: What the model keeps of its batches and returns anew from each step, such as
            Flax's ``batch_stats``: a pytree of moving averages, in which integers count. The steps
            of all workers make one average; replicas in sync have their mean. None: it keeps none.
        momentum: What an average keeps of itself in a step, as the model's layers were told. Too
            small a number does less harm than one that is too large.

    Attributes:
        store: The arrays by name.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
        opt_state: Of an optimizer on this worker; None for one on the servers. Can be assigned.

    Raises:
        MissingExtraError: JAX or optax is not installed.
        ConfigurationError: The optimizer has no rule, and deltas are forbidden.
        ValueError: There is no floating-point array in ``params``.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        strategy: Strategy | None = None,
        *,
        deltas: Deltas = "allow",
        mean: bool = True,
        name: str = "",
        averages: Any = None,
        momentum: float = 0.99,
    ) -> None:
        self._jax = require("jax", "jax")
        place = choose_place(place_transformation(optimizer), deltas, "this optax transformation")
        tree = self._jax.tree_util
        paths, self._structure = tree.tree_flatten_with_path(params)
        self._leaves = [leaf for _, leaf in paths]
        prefix = f"{name}/" if name else ""
        named = [
            (prefix + name_of(path), i)
            for i, (path, leaf) in enumerate(paths)
            if self._is_shared(leaf)
        ]
        names = dict(sorted(named))  # the order of the store, which is that of its dicts
        if not names:
            raise ValueError(
                "params has no floating-point array; give the tree of the model's parameters "
                "(nnx.split, eqx.partition, or what Flax's init returns)"
            )
        self._prefix = prefix
        self._names_of_tree: dict[Any, list[str | None]] = {}
        self.worker_reason = place.reason if isinstance(place, OnWorker) else None
        self._decay = place.decay if isinstance(place, OnServer) else 0.0
        strategy = strategy if strategy is not None else get_strategy()
        first = {each: np.asarray(self._leaves[i]) for each, i in names.items()}
        kept = self._kept = None
        if self.worker_reason is not None:
            made = self._jax.eval_shape(optimizer.init, first)
            kept = self._kept = KeptState(
                _zeros(self._state_leaves(made)), kind="optax", prefix=name
            )
        moving = JaxAverages(averages, momentum, prefix=prefix, taken=first)
        self._moving = moving
        self.store = ArrayStore(
            first | moving.first,
            place.optimizer() if isinstance(place, OnServer) else None,
            strategy,
            mean=mean,
            tables=None if kept is None else kept.variables(strategy),
        )
        in_sync = strategy.num_replicas_in_sync > 1
        self._keeps = kept is not None and (in_sync or strategy.extended.should_checkpoint)
        self._names = list(first)
        self._positions = list(names.values())
        self._values: Mapping[str, Any] = self.store.pull()
        self._arrays: list[Any] | None = None
        self.opt_state: Any = None
        if self.worker_reason is not None:
            self.opt_state = optimizer.init(self._own_arrays())
            self._update = self._jax.jit(optimizer.update)
            self._take_state()

    def _is_shared(self, leaf: Any) -> bool:
        dtype = getattr(leaf, "dtype", None)
        return dtype is not None and bool(self._jax.numpy.issubdtype(dtype, np.floating))

    # -- values ------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The tree, of JAX arrays: in ``run`` of the step; outside of this state's last step."""
        if is_running(self.store.strategy):
            return self._tree(on_device(list(self.store.pull(self._names).values())))
        return self._tree(self._own())

    @property
    def averages(self) -> Any:
        """The tree of averages, as ``params``; None if there is none."""
        return self._moving.whole(self._averages_now())

    def _averages_now(self) -> Mapping[str, Any]:
        if is_running(self.store.strategy) and self._moving.first:
            return dict(self.store.pull(list(self._moving.first)))
        return self._values

    def refresh(self) -> Any:
        """The tree as it is now, with what other workers have pushed; outside of ``run``."""
        self._values, self._arrays = self.store.pull(), None
        if self._keeps and self._kept is not None and self._kept.is_other(self.store.pull):
            self._take_state()
        return self.params

    @property
    def step(self) -> int:
        """The job's global step, as far as this worker knows."""
        return self.store.step

    def _own(self) -> list[Any]:
        arrays = self._arrays
        if arrays is None or any(array.is_deleted() for array in arrays):
            arrays = self._arrays = on_device([self._values[name] for name in self._names])
        return arrays

    def _own_arrays(self) -> dict[str, Any]:
        """The optimizer's tree: what the store has, by name."""
        return dict(zip(self._names, self._own(), strict=True))

    def _tree(self, arrays: list[Any]) -> Any:
        leaves = list(self._leaves)
        for i, array in zip(self._positions, arrays, strict=True):
            leaves[i] = array
        return self._jax.tree_util.tree_unflatten(self._structure, leaves)

    # -- updates -----------------------------------------------------------------------------

    def apply_gradients(self, gradients: Any, *, averages: Any = None) -> None:
        """Update the parameters by gradients; outside of ``run`` this is a step of its own.

        Args:
            gradients: A tree like ``params``, or what is left of it without the leaves that have
                no gradient.
            averages: What the step made of ``averages``, the whole tree; None: nothing.

        Raises:
            ValueError: It has a leaf that ``params`` has not; or averages are of another structure.
            RuntimeError: A gradient was donated to a jitted function before.
        """
        named = self._named(gradients)
        moved = {}
        if averages is not None:
            moved = self._moving.moved(averages, self._averages_now())
        if is_running(self.store.strategy):
            if self.worker_reason is None:
                self.store.push(self._with_decay(named, self.store.pull(self._names)))
            else:
                self.store.push_by(self._update_here, named, kept=self._state_pushed())
            self.store.push_averages(moved)
            return
        named = self._with_decay(named, self._values)
        update = None if self.worker_reason is None else self._update_here
        kept = None if update is None else self._state_pushed()
        self._values = self.store.exchange(named, update=update, kept=kept, averages=moved)
        self._arrays = None

    def _with_decay(self, gradients: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        if not self._decay:
            return gradients
        return {name: g + g.dtype.type(self._decay) * values[name] for name, g in gradients.items()}

    def _update_here(self, gradients: Mapping[str, Any]) -> Mapping[str, Any]:
        """Let optax make updates, which are what is added to the parameters."""
        values = self.store.pull(self._names)  # of the step
        like = {name: gradients.get(name) for name in values}
        whole = {name: np.zeros_like(values[name]) if g is None else g for name, g in like.items()}
        updates, self.opt_state = self._update(whole, self.opt_state, dict(values))
        return {name: updates[name] for name in gradients}

    # -- the state of an optimizer on this worker --------------------------------------------

    def _state_leaves(self, opt_state: Any) -> dict[str, Any]:
        """Its arrays by name; keys of random numbers stay this worker's."""
        leaves = self._jax.tree_util.tree_flatten_with_path(opt_state)[0]
        return {
            name_of(path): leaf
            for path, leaf in leaves
            if not self._jax.dtypes.issubdtype(
                getattr(leaf, "dtype", np.float32), self._jax.dtypes.extended
            )
        }

    def _state_pushed(self) -> Kept | None:
        kept = self._kept
        if kept is None or not self._keeps:
            return None

        def pushed() -> Mapping[str, Any]:
            leaves = self._state_leaves(self.opt_state)
            start_copies(list(leaves.values()))
            return kept.pushed(leaves)

        return pushed

    def _take_state(self) -> None:
        """Go on with the state that the job has, if it has one."""
        kept = self._kept
        entries = {} if kept is None else kept.found(self.store.pull(kept.names()))
        if not entries:
            return
        tree = self._jax.tree_util
        paths, structure = tree.tree_flatten_with_path(self.opt_state)
        leaves = []
        for path, leaf in paths:
            entry = entries.get(name_of(path))
            leaves.append(leaf if entry is None else self._jax.numpy.asarray(entry))
        self.opt_state = tree.tree_unflatten(structure, leaves)

    def _named(self, gradients: Any) -> dict[str, Any]:
        leaves, structure = self._jax.tree_util.tree_flatten(gradients)
        names = self._names_of_tree.get(structure)
        if names is None:
            names = self._names_of_tree[structure] = self._learn_names(gradients)
        found = {}
        start_copies(leaves)
        for name, leaf in zip(names, leaves, strict=True):
            if name is not None:
                if getattr(leaf, "is_deleted", bool)():
                    raise RuntimeError(
                        f"the gradient of {name!r} was donated to a jitted function and is gone; "
                        "call apply_gradients before, or do not donate gradients"
                    )
                found[name] = np.asarray(leaf)  # waits for it; no copy on a CPU
        return found

    def _learn_names(self, gradients: Any) -> list[str | None]:
        names: list[str | None] = []
        for path, leaf in self._jax.tree_util.tree_flatten_with_path(gradients)[0]:
            name = self._prefix + name_of(path)
            if name in self.store.variables:
                names.append(name)
            elif self._is_shared(leaf):
                known = ", ".join(self.store.names[:8])
                raise ValueError(
                    f"gradients have an array {name!r} that params has not; params has {known}"
                )
            else:
                names.append(None)  # float0, of an integer; or no array at all
        return names


def _zeros(leaves: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in leaves.items()}
    return {name: array for name, array in made.items() if can_keep(array)}
