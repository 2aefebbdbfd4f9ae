"""JAX: a tree of parameters that all workers share, with an optax optimizer.

The program's functions stay as they are: parameters come out as a tree of JAX arrays, gradients go
in as such a tree. What is kept of them is NumPy arrays, read-only, so a program may donate what it
was given to a jitted function: the next look at ``params`` makes new ones.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ...core.errors import ConfigurationError
from ...core.rules.update_rules import OnWorker
from ...distribute.base.contexts import get_replica_context, is_running
from ...distribute.base.moved_average import MovedAverage
from ...distribute.strategies.default import get_strategy
from ...distribute.strategies.strategy import Strategy
from ...training.array_store import Kept, ModelStep, Update
from ...training.extras import require
from ...training.own_optimizer import Deltas, choose_place, tell_of_half_precision
from ...training.rule_table import optimizer_of
from ...training.shared_model import SharedModel
from ...training.update_count import counted_by
from .arrays import is_traced, on_device, to_hosts
from .averages import JaxAverages
from .embedding import RowGradients
from .norms import SameNorms
from .on_device import StepsOnDevice
from .optax_reading import place_transformation
from .optax_worker import WorkerOptimizer
from .tree import ParameterTree, is_floating

__all__ = ["TrainState"]


class TrainState:
    """Parameters under a strategy, and how they are updated. Named as Flax's class of this use.

    ::

        state = rw.training.jax.TrainState(params, optax.adam(1e-3), strategy)
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
        strategy: Strategy under which they live; None: the current one.
        deltas: Whether the optimizer may run on the worker: ``allow`` it if it has no rule,
            ``forbid`` it, or ``always``.
        mean: Gradients of replicas in sync are averaged; False: added up.
        name: Comes first in the names of the arrays.
        averages: State that the model keeps of its batches and returns anew from each step, such as
            Flax's ``batch_stats``: a pytree of moving averages, in which integers count. The steps
            of all workers make one average; replicas in sync have their mean. None: it keeps none.
        momentum: Share of itself that an average keeps in a step, as the model's layers were told.
            Too small a number does less harm than one that is too large.

    Attributes:
        store: The arrays by name.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.

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
        place = choose_place(place_transformation(optimizer), deltas, "this optax transformation")
        self._tree = ParameterTree(params, prefix=f"{name}/" if name else "")
        strategy = strategy if strategy is not None else get_strategy()
        self.worker_reason: str | None = None
        self._decay, own, rule, count = 0.0, None, None, None
        if isinstance(place, OnWorker):
            self.worker_reason = place.reason
            own = WorkerOptimizer(optimizer, self._tree, strategy, name=name)
        else:
            self._decay, rule = place.decay, optimizer_of(place)
            schedule = place.arguments["learning_rate"]
            if callable(schedule):
                count = counted_by(strategy, self._tree.prefix, rule, schedule)
        self._own_optimizer = own
        moving = self._moving = JaxAverages(
            averages, momentum, prefix=f"{name}/" if name else "", taken=self._tree.first
        )
        self._names = list(self._tree.first)
        first = {**self._tree.first, **moving.first}
        kept = None if own is None else own.kept
        self._model = SharedModel(first, rule, strategy, kept=kept, count=count, mean=mean)
        self.store = self._model.store
        if self.store.alone is None or own is None:
            kind = "this optax transformation"
            tell_of_half_precision(self._tree.first, kind, as_deltas=own is not None)
        self._in_sync = strategy.extended.num_replicas_in_sync > 1
        self._are_reduced = False  # the gradients of the next step, by synchronize
        self._norms = SameNorms()
        self._values: Mapping[str, Any] = {}
        self._arrays: list[Any] | None = None
        self._on_device: StepsOnDevice | None = None
        self._take(self._model.pull())
        if own is not None:
            own.begin({name: self._values[name] for name in self._names})
            own.kept.refresh(self.store)
            if self.store.alone is not None:
                names = [*self._names, *own.kept.names]
                self._on_device = StepsOnDevice(self.store, names, self._own_values)

    @property
    def opt_state(self) -> Any:
        """The state of an optimizer on this worker; None for one on the servers. Can be assigned.

        Raises:
            ValueError: It is assigned, and the optimizer runs on the servers.
        """
        return None if self._own_optimizer is None else self._own_optimizer.state

    @opt_state.setter
    def opt_state(self, state: Any) -> None:
        if self._own_optimizer is None:
            raise ValueError(
                "the optimizer runs on the servers, which have its state; "
                'TrainState(…, deltas="always") keeps it on this worker'
            )
        self._own_optimizer.state = state

    # -- values ------------------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The tree, of JAX arrays: in ``run`` of the step; outside of this state's last step."""
        if is_running(self.store.strategy):
            return self._tree.whole(on_device(list(self.store.pull(self._names).values())))
        return self._tree.whole(self._own())

    @params.setter
    def params(self, _: Any) -> None:
        raise ConfigurationError(
            "params of a TrainState cannot be assigned, since other workers train them, too. Make "
            "what changes them a part of the optimizer: optax.chain(optimizer, "
            "optax.stateless(lambda updates, params: jax.tree.map(lambda u, p: "
            "change(p + u) - p, updates, params))); or give all workers other values by "
            "state.store.assign(...) and read state.refresh()"
        )

    @property
    def averages(self) -> Any:
        """The tree of averages, as ``params``; None if there is none."""
        return self._moving.whole(self._averages_now())

    def _averages_now(self) -> Mapping[str, Any]:
        if is_running(self.store.strategy) and self._moving.first:
            return dict(self.store.pull(list(self._moving.first)))
        return self._values

    def refresh(self) -> Any:
        """Refresh the tree to what it is now, with what other workers have pushed; outside of
        ``run``.
        """
        self._take(self._model.refresh())
        return self.params

    @property
    def step(self) -> int:
        """The job's global step, as far as this worker knows."""
        return self.store.step

    def _take(self, values: Mapping[str, Any]) -> None:
        self._values, self._arrays = values, None
        if self._on_device is not None:
            self._on_device.loaded()

    def _own(self) -> list[Any]:
        arrays = self._arrays
        if arrays is None or any(array.is_deleted() for array in arrays):
            arrays = on_device([self._values[name] for name in self._names])
            # In a function that is being traced they are a part of it, and of no use after it.
            self._arrays = None if is_traced(arrays[0]) else arrays
        return arrays

    # -- updates -----------------------------------------------------------------------------

    def synchronize(self, gradients: Any) -> Any:
        """Average gradients over the workers in sync now, instead of in ``apply_gradients``.

        For what needs the gradients of the whole batch, such as clipping by their norm::

            loss, gradients = loss_and_gradients(state.params, batch)
            gradients = state.synchronize(gradients)
            state.apply_gradients(clipped(gradients))

        Each worker has to call it, once for each ``apply_gradients``. Where no other worker's
        gradients are averaged with these, they are returned as they are.

        Args:
            gradients: Gradients, as ``apply_gradients`` takes them.

        Returns:
            A tree of the same structure, of JAX arrays.

        Raises:
            RuntimeError: In ``run``, or with several replicas in this process.
            RopewalkError: What the other workers, or the links to them, raise.
        """
        strategy = self.store.strategy
        if is_running(strategy):
            raise RuntimeError(
                "synchronize is called outside of strategy.run; in it write "
                'rw.distribute.get_replica_context().all_reduce("MEAN", gradients), and give '
                "apply_gradients what becomes of them"
            )
        if not self._in_sync:
            return gradients
        named = to_hosts(self._tree.named_gradients(gradients))
        reduced = self.store.reduce(named)
        self._are_reduced = True
        arrays = on_device([np.asarray(reduced[name]) for name in named])
        return self._tree.with_gradients(gradients, dict(zip(named, arrays, strict=True)))

    def apply_gradients(
        self,
        gradients: Any,
        *,
        averages: Any = None,
        rows: RowGradients | None = None,
        **extra: Any,
    ) -> Any:
        """Update the parameters by gradients; outside of ``run`` this is a step of its own.

        Args:
            gradients: A tree like ``params``, or what is left of it without the leaves that have
                no gradient.
            averages: Tree that the step made of ``averages``, whole; None: nothing.
            rows: Gradients of rows of ``rw.embedding``, by :func:`value_and_grad`; they travel in
                the same push. None: there are none.
            extra: Arguments that ``update`` of the optax transformation takes besides, such as
                ``value`` for ``polyak_sgd`` and ``value_fn`` for ``lbfgs``. Floating-point numbers
                and arrays are averaged over replicas in sync. A rule of the servers needs none.

        Returns:
            ``params`` after the step; in ``run``, whose step ends later, None.

        Raises:
            ConfigurationError: ``extra`` has something else than floating-point numbers, and
                replicas are in sync.
            ValueError: ``gradients`` has a leaf that ``params`` has not; or averages are of another
                structure.
            RuntimeError: A gradient was donated to a jitted function before.
        """
        if rows is None and self._step_on_device(gradients, averages, extra):
            return self.params
        reduced, self._are_reduced = self._are_reduced, False
        named = self._named(gradients, reduced=reduced)
        moved = {} if averages is None else self._moving.moved(averages, self._averages_now())
        update, kept = self._step_on_worker(extra)
        if is_running(self.store.strategy):
            self._push(named, update, kept, moved)
            if rows is not None:
                rows.apply(self.store.scale)
            return None
        values = self._model.exchange(
            ModelStep(
                self._with_decay(named, self._values, reduced=reduced),
                update=update,
                kept=kept,
                averages=moved,
                reduced=reduced,
                beside=None if rows is None else rows.apply,
            )
        )
        self._take(values)
        return self.params

    def _named(self, gradients: Any, *, reduced: bool) -> dict[str, Any]:
        """Name the gradients, where the optimizer takes them."""
        # An optimizer on this worker takes gradients where they are, if no other worker's join.
        named = self._tree.named_gradients(gradients)
        if self._own_optimizer is None or self._in_sync:
            named = to_hosts(named)
        if self._in_sync and not reduced:
            self._norms.note(named)
        return named

    def _push(
        self,
        named: dict[str, Any],
        update: Update | None,
        kept: Kept | None,
        moved: dict[str, MovedAverage],
    ) -> None:
        """Give a step that is running what it pushes."""
        count = self._model.count
        if update is not None:
            self.store.push_by(update, named, kept=kept)
        else:
            values = self.store.pull() if self._decay or count is not None else {}
            if count is not None:
                count.take_out(values)
            self.store.push(self._with_decay(named, values))
        if count is not None:
            moved |= count.one_more
            count.added()
        self.store.push_averages(moved)

    def _step_on_worker(self, extra: Mapping[str, Any]) -> tuple[Update | None, Kept | None]:
        """Make a step of the optimizer on this worker, whose state is the new one once it counts.

        Returns:
            (update, kept), as the store takes them; both None: the servers have the optimizer.
        """
        own = self._own_optimizer
        if own is None:
            return None, None
        if extra and self._in_sync:
            extra = self._over_replicas(extra)
        state: Any = None

        def update(gradients: Mapping[str, Any]) -> Mapping[str, Any]:
            nonlocal state
            if is_running(self.store.strategy):
                values = self.store.pull(self._names)
            else:
                values = dict(zip(self._names, self._own(), strict=True))
            updates, state = own.update(gradients, values, extra)
            return updates

        def kept() -> Mapping[str, Any]:
            own.state = state
            own.kept.steps += 1
            return own.kept.pushed(own.entries)

        return update, kept

    def _own_values(self) -> Mapping[str, Any]:
        """Collect the parameters, and the state of the optimizer on this worker, as they are
        now.
        """
        own, values = self._own_optimizer, {name: self._values[name] for name in self._names}
        return values if own is None else values | own.kept.pushed(own.entries)

    def _step_on_device(self, gradients: Any, averages: Any, extra: Mapping[str, Any]) -> bool:
        """Make a step of this worker's optimizer where no other process has the parameters."""
        own, steps = self._own_optimizer, self._on_device
        if own is None or steps is None or averages is not None or self._in_sync:
            return False
        named = self._tree.named_gradients(gradients)
        arrays_by_name: dict[str, Any] = {}

        def update() -> dict[str, Any]:
            arrays = dict(zip(self._names, self._own(), strict=True))
            arrays_by_name.update(own.apply(named, arrays, extra))
            return arrays_by_name

        def commit(on_host: dict[str, Any]) -> None:
            self._arrays = [arrays_by_name[name] for name in self._names]
            self._values = {**self._values, **on_host}
            own.kept.steps += 1

        before = own.state
        counts = steps.step(update, commit)
        if counts is False:  # it may have NaN now
            own.state = before
        return counts is not None

    def _with_decay(
        self, gradients: dict[str, Any], values: Mapping[str, Any], *, reduced: bool = False
    ) -> dict[str, Any]:
        if not self._decay:
            return gradients
        # Where gradients are added up, the decay of all replicas together counts once.
        adds_up = not (reduced or self.store.mean)
        replicas = self.store.strategy.extended.num_replicas_in_sync if adds_up else 1
        decay = self._decay / replicas
        return {name: g + g.dtype.type(decay) * values[name] for name, g in gradients.items()}

    def _over_replicas(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        """Average over replicas in sync: each worker's optimizer has to be given the same."""
        tree = require("jax", "jax").tree_util
        leaves, structure = tree.tree_flatten(dict(extra))
        for name, value in extra.items():
            if not all(is_floating(leaf) for leaf in tree.tree_leaves(value)):
                raise ConfigurationError(
                    f"{name}={value!r}: replicas in sync have one each, which is no floating-point "
                    "number and cannot be averaged, so their optimizers would part; use an "
                    "optimizer that needs gradients and numbers alone, or parameter servers"
                )

        def mean() -> Any:
            context = get_replica_context()
            assert context is not None  # noqa: S101 - in run
            means = context.all_reduce("MEAN", [np.asarray(leaf) for leaf in leaves])
            return list(map(to_host, means))

        strategy = self.store.strategy
        reduced = mean() if is_running(strategy) else strategy.run(mean)
        return dict(tree.tree_unflatten(structure, reduced))
