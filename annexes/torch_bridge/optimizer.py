"""PyTorch: an optimizer whose parameters are shared by all workers.

The program's module, loss and ``backward`` stay as they are, and so do the parameters: their memory
is written in place, so ``torch.compile``, hooks and references to them go on working. ``step``
pushes the gradients and loads what comes back.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ...core.errors import ConfigurationError, NonFiniteGradientError
from ...distribute.base.devices import is_gpu
from ...distribute.base.moved_average import MovedAverage
from ...distribute.strategies.default import get_strategy
from ...distribute.strategies.strategy import Strategy
from ...training.array_store import ModelStep, PushBeside, Update
from ...training.extras import require
from ...training.own_optimizer import Deltas, tell_of_half_precision
from ...training.shared_model import SharedModel
from .buffers import Buffers
from .changes import parameter_changes, refuse_changes_in_forward
from .closures import closure_of_all
from .embedding import Collections
from .gradients import GradientsInSync
from .host_copies import HostCopies
from .in_place import StepsInPlace
from .names import SHARED, named_parameters
from .optimizer_face import OptimizerFace
from .rules import TorchRules, has_stepped, refuse_several_losses, take_scale_out
from .server_state import StateOnServers, StepsOfState
from .tensors import Targets, from_gradient, pin_values_for, to_array
from .updates import JobUpdates, has_scheduler, name_of_updates
from .worker_state import StateOnWorker

torch: Any = require("torch", "torch")

__all__ = ["DistributedModule", "DistributedOptimizer"]


class DistributedOptimizer(OptimizerFace):
    """An optimizer of ``torch.optim`` under a strategy.

    ::

        strategy = rw.distribute.ParameterServerStrategy()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module)

    Everything else is as before: ``zero_grad``, ``backward``, ``step``, schedulers made with this
    optimizer, gradient accumulation, ``GradScaler``. Parameters begin with the chief's values on
    every worker, and after each ``step`` have what the servers have. One that has a rule
    (docs/bridges.md) runs on the servers, any other on this worker, whose changes are pushed as
    deltas. Sparse gradients travel as rows.

    Args:
        optimizer: Optimizer of all parameters that are trained.
        strategy: Strategy with one replica in this process; None: the current one.
        module: Gives the parameters their names. An ``EmbeddingBagCollection`` in it is trained by
            the same steps. Its buffers are kept with them: running averages
            (batch norm) cover the batches of all workers; each worker has its own of the others
            while it trains, and what its steps change overwrites the job's.
        deltas: Whether the optimizer may run on the worker: ``allow`` it if it has no rule,
            ``forbid`` it, or ``always``.
        mean: Whether gradients of workers in sync are averaged; False: added up.
        name: Prefix of the names.

    Attributes:
        store: Parameters and buffers by name.
        worker_reason: Why the optimizer runs on this worker; None: it runs on the servers.
        updates: Number of times that it was applied; None: no scheduler was made with it before.

    Raises:
        MissingExtraError: PyTorch is not installed.
        ConfigurationError: The strategy has several replicas in this process; the optimizer has no
            rule and deltas are forbidden, or it has a state already; it is shared already; a
            parameter has no shape yet.
        ValueError: The module has not all of the parameters.
    """

    def __init__(
        self,
        optimizer: Any,
        strategy: Strategy | None = None,
        *,
        module: Any = None,
        deltas: Deltas = "allow",
        mean: bool = True,
        name: str = "",
    ) -> None:
        strategy = strategy if strategy is not None else get_strategy()
        _check(optimizer, strategy)
        refuse_changes_in_forward(module, strategy.num_training_tasks)
        self._wrap(optimizer)
        self._parameters = named_parameters(optimizer, module, name)
        self._collections = Collections(module, strategy)
        self.updates = None
        if has_scheduler(optimizer):
            self.updates = JobUpdates(name_of_updates(self._parameters, name))
            optimizer._opt_called = True  # a scheduler looks whether its optimizer has stepped
        self._buffers = Buffers(module, name, strategy, self.updates)
        if self._collections:
            refuse_several_losses(
                optimizer, "take another optimizer for a module with an EmbeddingBagCollection"
            )
        self._rules = TorchRules(optimizer, deltas)
        self.worker_reason = self._rules.worker_reason
        on_worker = self.worker_reason is not None
        if not on_worker:
            self._require_fresh()
            self._show_no_state()
        everything = self._parameters | self._buffers.tensors
        pin_values_for(everything.values())
        self._own_state = (
            StateOnWorker(optimizer, self._parameters, strategy, name) if on_worker else None
        )
        self._model = self._new_model(strategy, mean=mean)
        self.store = self._model.store
        self._buffers.share(self.store.variables)
        if self._own_state is not None and not self._collections:
            self._own_state.keep_in_place(self.store)
        self._steps_of_state = StepsOfState(self._kind, resumed=self.store.step > 0)
        self._copies, self._results = HostCopies(), HostCopies()
        self._values: Mapping[str, Any] = {}
        self._stepped = Targets(self._parameters | self._buffers.averages)
        self._changes = parameter_changes(self.store)
        in_sync = strategy.extended.num_replicas_in_sync > 1
        self._in_sync = GradientsInSync(self.store, self._parameters) if in_sync else None
        self._everything = Targets(everything)
        self._in_place = StepsInPlace(
            self.store,
            self._parameters,
            self._buffers.tensors,
            on_servers=not on_worker,
            may_step=not self._collections,  # whose rows travel with a push
        )
        self._load()

    def _wrap(self, optimizer: Any) -> None:
        """Be an optimizer of torch that has the groups and hooks of another one."""
        self._optimizer = optimizer
        setattr(optimizer, SHARED, True)
        setattr(self, SHARED, True)
        self._complete = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._complete = True
        self.param_groups = optimizer.param_groups
        if hasattr(optimizer, "_optimizer_step_pre_hooks"):  # else it is not of torch, and has none
            self._optimizer_step_pre_hooks = optimizer._optimizer_step_pre_hooks
            self._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks

    def _require_fresh(self) -> None:
        """Refuse an optimizer that is to run on the servers, and has a state already."""
        if has_stepped(self._optimizer):
            raise ConfigurationError(
                f"this {self._kind} has a state already, and the servers begin with a fresh one; "
                "wrap it before its first step, begin the job with its state by "
                "rw.training.torch.write_checkpoint, or keep it on the worker with "
                'deltas="always"'
            )

    def _new_model(self, strategy: Strategy, *, mean: bool) -> SharedModel:
        """Parameters, buffers, and what is kept of a state on this worker, as variables."""
        own_state = self._own_state
        first = {name: to_array(tensor) for name, tensor in self._parameters.items()}
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        model = SharedModel(
            first | self._buffers.leaves(),
            self._rules.optimizers(names),
            strategy,
            kept=None if own_state is None else own_state.kept,
            mean=mean,
        )
        if model.store.alone is None or own_state is None:
            tell_of_half_precision(first, self._kind, as_deltas=own_state is not None)
        return model

    # -- values ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Load parameters and buffers as they are now, with what other workers have pushed.

        What the program has changed in parameters since the last step counts as before a step, and
        so do buffers that are no averages. What averages have seen since then stays in them, and is
        pushed with the next step.
        """
        moved: Mapping[str, MovedAverage] = {}
        if not self._in_place.keeps_changes:
            moved = self._buffers.moved()
            self._give_changes()
            if changed := self._buffers.changed():
                self.store.assign(changed)
        self._load(moved)

    def _give_changes(self) -> None:
        changed = self._stepped.changed(self._parameters, self._values)
        if self.worker_reason is None or self._in_sync is not None:
            self._changes.give_before_step(changed)
            return
        self.store.push_delta({n: array - self._values[n] for n, array in changed.items()})

    def _load(self, moved: Mapping[str, MovedAverage] | None = None) -> None:
        self._values = values = self._model.refresh()
        if moved:
            values = {
                **values,
                **{name: average.on(values[name]) for name, average in moved.items()},
            }
        self._everything.load(values)
        self._buffers.loaded(self._values)
        self._buffers.mark()
        self._in_place.loaded()

    def publish(self) -> None:
        """Overwrite the values of all workers with this one's parameters and buffers."""
        everything = self._parameters | self._buffers.tensors
        self.store.assign({name: to_array(tensor) for name, tensor in everything.items()})
        self._load()

    # -- steps -------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Average gradients over the workers in sync now, instead of in ``step``.

        For what needs the gradients of the whole batch, such as clipping by their norm::

            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()

        Each worker has to call it, after the last ``backward`` of a step. It does nothing where no
        other worker's gradients are averaged with these.

        Raises:
            ConfigurationError: Gradients are added up (``mean=False``), and ``backward`` was called
                after the last ``synchronize`` of this step.
            RopewalkError: What the other workers, or the links to them, raise.
        """
        if self._in_sync is not None:
            self._in_sync.reduce(self._gradients())

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, and load the values that come back.

        Args:
            closure: Computes the loss and the gradients. An optimizer on this worker calls it as
                often as it does alone; for one on the servers it is called once.

        Returns:
            First result of ``closure``, of workers in sync averaged where the optimizer is on the
            worker; None without one.

        Raises:
            ConfigurationError: The program has changed gradients of a worker in sync, without
                :meth:`synchronize`; or called ``unscale_`` of a GradScaler with an
                ``EmbeddingBagCollection``.
            NonFiniteGradientError: A gradient was NaN or infinite many steps in a row.
            ShapeMismatchError: A parameter has another shape than when it was wrapped.
            RopewalkError: What the session with the servers raises.
        """
        loss, state = None, self._own_state
        if self.updates is not None:
            self.updates.add()
        if closure is not None:
            if state is not None and not self._collections:  # whose rows are those of one loss
                return self._step_by_closure(state, closure)
            with torch.enable_grad():
                loss = closure()
        reduced = self._in_sync is not None and self._in_sync.begin_step()
        beside = self._collections.push(self)
        if not take_scale_out(self, self._parameters, self.store.strategy):
            self._collections.clear()
            return loss
        if state is None:
            update = None
            gradients = self._gradients_for_servers(reduced=reduced)
            if self._in_place.step(gradients):
                return loss
        else:
            gradients = self._gradients()
            if self._step_here(state, partial(state.step, gradients)):
                return loss
            update = partial(self._update_here, state)
        self._take_changes()
        self._exchange(state, gradients, update, reduced=reduced, beside=beside)
        return loss

    def _step_by_closure(self, state: StateOnWorker, closure: Callable[[], Any]) -> Any:
        """Make a step of an optimizer on this worker, which is given the closure itself."""
        if self._in_sync is not None:
            closure = closure_of_all(closure, self._gradients, self._in_sync, self.store)
        loss: Any = None

        def update() -> None:
            nonlocal loss
            loss = state.step_by(closure)

        if not self._step_here(state, update):
            self._take_changes()
            try:
                update()
                added = self._added([n for n, p in self._parameters.items() if p.grad is not None])
                self._exchange(state, {}, lambda _: added, reduced=self._in_sync is not None)
            finally:
                state.undo_refused()
        return loss

    def _gradients_for_servers(self, *, reduced: bool) -> dict[str, Any]:
        """Collect the gradients as the rules of the servers want them, by the groups' settings of
        now.
        """
        self._rules.follow()
        replicas = self.store.strategy.extended.num_replicas_in_sync
        # What this worker adds of weight decay: gradients of workers in sync may be added up.
        share = 1.0 if reduced or self.store.mean else 1.0 / replicas
        gradients = self._rules.completed(self._gradients(), self._parameters, share=share)
        self._steps_of_state.made += self._rules.have_state
        return gradients

    def _take_changes(self) -> None:
        """Go on from what the program, or steps in place, have made of the values since."""
        after_own = self._in_place.values()
        if after_own is not None:
            self._values = after_own
            self._buffers.loaded(after_own)
        elif self.worker_reason is None or self._in_sync is not None:
            changed = self._stepped.changed(self._parameters, self._values)
            if self._changes.give_before_step(changed):
                self._values = {**self._values, **changed}

    def _exchange(
        self,
        state: StateOnWorker | None,
        gradients: Mapping[str, Any],
        update: Update | None,
        *,
        reduced: bool,
        beside: PushBeside | None = None,
    ) -> None:
        """Push a step and what it has made of buffers; load the values that come back."""
        step = ModelStep(
            gradients,
            update=update,
            kept=None if state is None else state.pushed,
            averages=self._buffers.moved(),
            assigned=self._buffers.changed() or None,
            reduced=reduced,
            beside=beside,
        )
        if state is None:
            self._values = self.store.exchange(step)
        else:
            try:
                self._values = self.store.exchange(step)
            except NonFiniteGradientError:  # what was refused is in the parameters by now
                self._stepped.load(self._values)
                self._buffers.loaded(self._values)
                raise
            finally:
                state.undo_refused()
        self._stepped.load(self._values)
        self._buffers.loaded(self._values)
        self._in_place.loaded()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as ``Optimizer.zero_grad`` does; those of an
        ``EmbeddingBagCollection``, too.
        """
        super().zero_grad(set_to_none)
        self._collections.clear()

    def _gradients(self) -> dict[str, Any]:
        return self._copies.gradients(
            {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        )

    def _update_here(self, state: StateOnWorker, gradients: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make the optimizer's own step, and return what it adds to the values."""
        if self.store.strategy.extended.num_replicas_in_sync > 1:
            with torch.no_grad():
                for name, gradient in gradients.items():
                    parameter = self._parameters[name]
                    parameter.grad = from_gradient(gradient, parameter)
        state.step(gradients)
        return self._added(gradients)

    def _added(self, gradients: Collection[str]) -> Mapping[str, Any]:
        """Compute what parameters have more than the values that were loaded last.

        Args:
            gradients: Names of those with a gradient; of others, those that have changed.
        """
        others = [name for name in self._parameters if name not in gradients]
        changed = self._stepped.changed(others, self._values)  # by the program
        after = self._results.gradients({n: self._parameters[n] for n in (*gradients, *changed)})
        return {name: array - self._values[name] for name, array in after.items()}

    def _step_here(self, state: StateOnWorker, update: Callable[[], object]) -> bool:
        """Make a step of an optimizer on this worker where no other process has the parameters.

        Args:
            state: State of the optimizer.
            update: Makes the step.

        Returns:
            Whether that could be done.
        """
        try:
            counts = self._in_place.step_by(update)
            if counts:
                state.count_in_place()
        finally:
            state.undo_refused()
        return counts is not None

    # -- an Optimizer of torch ---------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler leaves it to :meth:`step` to take its scale out, or to do nothing.

        It cannot do so itself where all workers in sync skip a step together, and for gradients of
        an ``EmbeddingBagCollection``. It asks before each step.
        """
        if self.updates is not None:
            self.updates.is_scaled = True
        return self._in_sync is not None or bool(self._collections)


class DistributedModule(torch.nn.Module):  # type: ignore[misc]
    """A module that shows what all workers have learned.

    ``eval()`` loads the values of now, ``state_dict()`` has them under the module's own names, and
    ``load_state_dict()`` gives what it loads to all workers. ``forward`` is the module's.

    Args:
        module: Module whose parameters the optimizer updates.
        optimizer: Made with ``module=module``.
    """

    def __init__(self, module: Any, optimizer: DistributedOptimizer) -> None:
        super().__init__()
        self.module = module
        self._shared = optimizer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> "DistributedModule":
        """Set the mode as ``Module.train`` does; leaving training loads the values of now."""
        if self.training and not mode:
            self._shared.refresh()
        super().train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state, as all workers have it now."""
        self._shared.refresh()
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the module, and give the values to all workers."""
        result = self.module.load_state_dict(state_dict, *args, **kwargs)
        self._shared.publish()
        return result


def _one_device(replicas: int, gpus: bool) -> str:
    """Say what to do to have a process for each device."""
    if not gpus:
        return (
            "Leave out rw.config.set_logical_cpu_devices and start a process for each "
            f"(`ropewalk local --no-chief --workers {replicas}`)"
        )
    return (
        "Train on one GPU (CUDA_VISIBLE_DEVICES=0), start a process for each GPU "
        f"(`ropewalk local --no-chief --workers {replicas}`, without --gpus-per-worker)"
    )


def _check(optimizer: Any, strategy: Strategy) -> None:
    on_servers = isinstance(getattr(optimizer, "state", None), StateOnServers)
    if on_servers or isinstance(optimizer, DistributedOptimizer):
        raise ConfigurationError(
            "this optimizer is shared already: go on with the DistributedOptimizer that was made "
            "of it, or make a new optimizer of the same parameters"
        )
    devices = strategy.extended.replica_devices
    if len(devices) > 1:
        raise ConfigurationError(
            f"{type(strategy).__name__} has {len(devices)} replicas in this process, which would "
            f"share one module. {_one_device(len(devices), any(map(is_gpu, devices)))}, or give "
            "each replica a module by hand (docs/pytorch.md)"
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                raise ConfigurationError(
                    "a parameter has no shape yet: run one batch through the module before its "
                    "optimizer is wrapped"
                )
            if parameter.is_complex():
                raise ConfigurationError(
                    f"a parameter of shape {tuple(parameter.shape)} is of {parameter.dtype}, which "
                    "no variable can be; make a parameter of torch.view_as_real(tensor), and take "
                    "torch.view_as_complex(parameter) in the module"
                )
