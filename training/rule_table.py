"""The one table that maps an optimizer's configuration to a rule that runs where the arrays are.

Pure: frameworks describe their optimizers by a name and its hyperparameters, as plain numbers; what
comes back is a rule, or the reason why there is none. An entry maps an optimizer only if the rule's
formula is the same but for rounding: a program that is moved here has the curve it had.

Without a rule the optimizer runs on the worker and its changes are pushed as deltas. With several
asynchronous workers that means: each has a state of its own, made of its own gradients alone, and
the deltas of all add up, in whatever order they arrive; none is lost and none counts twice. The
state is not in the job's checkpoints. Workers in sync give their optimizers the same reduced
gradients, and their states are equal.

Sources: the documentation of ``torch.optim`` (2.13), optax (0.2.8) and Keras (3.15), whose formulas
``core/rules/update_rules.py`` compares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.rules.update_rules import (
    BUILT_IN,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
    UpdateRule,
)
from ..distribute.optimizer import Optimizer

Hyperparameters = Mapping[str, Any]
_SMALL_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class OnServer:
    """An optimizer that has a rule.

    Attributes:
        kind: The rule.
        arguments: Its fields; ``learning_rate`` may be a callable of the step.
        decay: The worker adds so much of each value to its gradient first: coupled weight decay,
            of which the rules have none.
    """

    kind: type[UpdateRule]
    arguments: Mapping[str, Any]
    decay: float = 0.0

    def optimizer(self) -> Optimizer:
        """One with this rule."""
        return Optimizer(self.kind, **self.arguments)


@dataclass(frozen=True, slots=True)
class OnWorker:
    """An optimizer that has none.

    Attributes:
        reason: Why, as the rest of a sentence that begins with its name.
    """

    reason: str


Place = OnServer | OnWorker
Entry = Callable[[Hyperparameters], Place]


def place_torch(name: str, group: Hyperparameters) -> Place:
    """Where a ``torch.optim`` optimizer runs.

    Args:
        name: Name of the optimizer's class.
        group: One of its ``param_groups``, without the parameters.
    """
    if group.get("maximize"):
        return OnWorker("maximizes, rules minimize")
    return _look_up(_TORCH, name, group)


def place_keras(name: str, config: Hyperparameters) -> Place:
    """Where a ``keras.optimizers`` optimizer runs.

    Args:
        name: Name of the optimizer's class.
        config: Its ``get_config()``, with the rate as a number or as a callable of the step.
    """
    if config.get("use_ema"):
        return OnWorker("keeps a moving average of the weights (use_ema)")
    if config.get("gradient_accumulation_steps"):
        return OnWorker("accumulates gradients over steps (gradient_accumulation_steps)")
    if config.get("loss_scale_factor"):
        return OnWorker("scales the loss (loss_scale_factor)")
    if config.get("amsgrad"):
        return OnWorker("keeps the maximum of its velocities (amsgrad)")
    if name == "LossScaleOptimizer":
        return OnWorker("scales the loss, as mixed_float16 needs")
    return _look_up(_KERAS, name, config)


def place_optax(parts: Sequence[tuple[str, Hyperparameters]]) -> Place:
    """Where a chain of optax transformations runs.

    Args:
        parts: Each transformation's name and hyperparameters, in order, without identities.
    """
    chain = [name for name, _ in parts]
    hyper = dict(parts)
    if len(hyper) < len(parts):
        return OnWorker(f"repeats a transformation: {' > '.join(chain)}")
    clipping: dict[str, Any] = {}
    if chain[:1] == ["clip_by_global_norm"]:
        clipping["global_clipnorm"] = hyper[chain.pop(0)]["max_norm"]
    if chain[:1] == ["clip"]:
        clipping["clipvalue"] = hyper[chain.pop(0)]["max_delta"]
    decay = 0.0
    if chain[:1] == ["add_decayed_weights"] and not clipping:
        chain.pop(0)
        decay = hyper.pop("add_decayed_weights")["weight_decay"]
    entry = _OPTAX.get(tuple(chain))
    rate = next(
        (hyper[name]["rate"] for name in ("scale", "scale_by_schedule") if name in hyper), 0
    )
    if entry is None or not (callable(rate) or rate > 0):
        shown = " > ".join(name for name, _ in parts) or "of nothing"
        return OnWorker(f"is a chain that no rule carries out: {shown}")
    found = entry(hyper)
    if isinstance(found, OnServer):
        arguments = {**found.arguments, **clipping, "learning_rate": rate}
        return OnServer(found.kind, arguments, decay)
    return found


def _look_up(table: Mapping[str, Entry], name: str, given: Hyperparameters) -> Place:
    entry = table.get(name)
    return OnWorker("has no rule") if entry is None else entry(given)


# -- torch.optim: momentum without the rate in it, epsilon after the correction ----------------


def _coupled(kind: type[UpdateRule], group: Hyperparameters, **arguments: Any) -> OnServer:
    rate = {"learning_rate": float(group["lr"])}
    return OnServer(kind, rate | arguments, float(group.get("weight_decay", 0.0)))


def _torch_sgd(group: Hyperparameters) -> Place:
    if group["dampening"]:
        return OnWorker(f"dampens its momentum (dampening={group['dampening']})")
    momentum = float(group["momentum"])
    return _coupled(
        SGD, group, momentum=momentum, nesterov=bool(group["nesterov"]), rate_in_velocity=False
    )


def _torch_adam(group: Hyperparameters) -> Place:
    if group["amsgrad"]:
        return OnWorker("keeps the maximum of its velocities (amsgrad)")
    arguments = _betas(group) | {"corrected_epsilon": True}
    if group.get("decoupled_weight_decay"):
        decay = float(group["weight_decay"])
        return OnServer(
            AdamW, {"learning_rate": float(group["lr"]), "weight_decay": decay, **arguments}
        )
    return _coupled(Adam, group, **arguments)


def _torch_adagrad(group: Hyperparameters) -> Place:
    if group["lr_decay"]:
        return OnWorker(f"lowers its rate with the steps of each parameter ({group['lr_decay']=})")
    epsilon = float(group["eps"])
    if epsilon > _SMALL_EPSILON:
        return OnWorker(f"adds an epsilon of {epsilon:g} outside of the root, the rule inside")
    start = float(group["initial_accumulator_value"])
    # Inside of the root its square is the same where the root is 0, or larger by far.
    return _coupled(Adagrad, group, initial_accumulator_value=start, epsilon=epsilon**2)


def _torch_adadelta(group: Hyperparameters) -> Place:
    return _coupled(Adadelta, group, rho=float(group["rho"]), epsilon=float(group["eps"]))


def _torch_nadam(group: Hyperparameters) -> Place:
    if group["momentum_decay"] != 1.0 or group["decoupled_weight_decay"]:
        return OnWorker("warms its momentum up in another way than the rule (momentum_decay)")
    return _coupled(Nadam, group, **_betas(group))


def _betas(group: Hyperparameters) -> dict[str, Any]:
    beta_1, beta_2 = map(float, group["betas"])
    return {"beta_1": beta_1, "beta_2": beta_2, "epsilon": float(group["eps"])}


_TORCH: dict[str, Entry] = {
    "SGD": _torch_sgd,
    "Adam": _torch_adam,
    "AdamW": lambda group: _torch_adam({**group, "decoupled_weight_decay": True}),
    "SparseAdam": lambda group: _coupled(Adam, group, **_betas(group)),
    "Adagrad": _torch_adagrad,
    "Adadelta": _torch_adadelta,
    "NAdam": _torch_nadam,
    "RMSprop": lambda _: OnWorker("adds epsilon outside of the root, the rule inside"),
    "Adamax": lambda _: OnWorker("adds epsilon before the maximum, the rule after"),
}


# -- Keras: the rules are its own --------------------------------------------------------------


def _keras(kind: type[UpdateRule]) -> Entry:
    def place(config: Hyperparameters) -> Place:
        decay = config.get("weight_decay") or 0.0
        chosen = AdamW if kind is Adam and decay else kind
        if decay and "weight_decay" not in chosen.model_fields:
            return OnWorker(f"decays weights (weight_decay={decay:g}), which its rule does not")
        if decay and chosen is Lamb:
            return OnWorker("decays weights beside its ratio, the rule within")
        known = {
            name: value
            for name, value in config.items()
            if name in chosen.model_fields and name != "name" and value is not None
        }
        if chosen is AdamW:
            known["weight_decay"] = float(decay)
        return OnServer(chosen, known)

    return place


_KERAS: dict[str, Entry] = {kind.__name__: _keras(kind) for kind in BUILT_IN}


# -- optax: chains of transformations ----------------------------------------------------------


def _optax_sgd(hyper: Mapping[str, Hyperparameters]) -> Place:
    trace = hyper.get("trace", {"decay": 0.0, "nesterov": False})
    if trace.get("accumulator_dtype") is not None:
        return OnWorker("keeps its velocity in another dtype")
    momentum = float(trace["decay"])
    nesterov = bool(trace["nesterov"])
    return OnServer(SGD, {"momentum": momentum, "nesterov": nesterov, "rate_in_velocity": False})


def _adam_arguments(hyper: Mapping[str, Hyperparameters]) -> dict[str, Any] | OnWorker:
    adam = hyper["scale_by_adam"]
    if adam["eps_root"] or adam["nesterov"] or adam["mu_dtype"] is not None:
        return OnWorker("is an Adam with eps_root, nesterov or mu_dtype")
    return {"beta_1": adam["b1"], "beta_2": adam["b2"], "epsilon": adam["eps"]}


def _optax_adam(hyper: Mapping[str, Hyperparameters]) -> Place:
    arguments = _adam_arguments(hyper)
    if isinstance(arguments, OnWorker):
        return arguments
    decay = hyper.get("add_decayed_weights", {}).get("weight_decay")
    more: dict[str, Any] = {} if decay is None else {"weight_decay": decay}
    more |= {"corrected_epsilon": True, "float32_correction": True}
    return OnServer(Adam if decay is None else AdamW, arguments | more)


def _optax_lamb(hyper: Mapping[str, Hyperparameters]) -> Place:
    arguments, ratio = _adam_arguments(hyper), hyper["scale_by_trust_ratio"]
    if isinstance(arguments, OnWorker):
        return arguments
    if ratio["min_norm"] or ratio["eps"] or ratio["trust_coefficient"] != 1:
        return OnWorker("is a LAMB with a trust coefficient, a least norm or an epsilon")
    decay = hyper.get("add_decayed_weights", {}).get("weight_decay", 0.0)
    return OnServer(Lamb, arguments | {"weight_decay": decay})


def _optax_lion(hyper: Mapping[str, Hyperparameters]) -> Place:
    lion = hyper["scale_by_lion"]
    if lion["mu_dtype"] is not None or lion.get("mode", "hard") != "hard":
        return OnWorker("is a Lion of another mode, or one with its momentum in another dtype")
    decay = hyper.get("add_decayed_weights", {}).get("weight_decay", 0.0)
    return OnServer(Lion, {"beta_1": lion["b1"], "beta_2": lion["b2"], "weight_decay": decay})


def _optax_adagrad(hyper: Mapping[str, Hyperparameters]) -> Place:
    rss = hyper["scale_by_rss"]
    start = rss["initial_accumulator_value"]
    return OnServer(Adagrad, {"initial_accumulator_value": start, "epsilon": rss["eps"]})


def _optax_rmsprop(hyper: Mapping[str, Hyperparameters]) -> Place:
    rms, trace = hyper["scale_by_rms"], hyper.get("trace", {"decay": 0.0, "nesterov": False})
    if rms["bias_correction"] or not rms["eps_in_sqrt"] or rms["initial_scale"]:
        return OnWorker("is an RMSprop with a bias correction, a start, or epsilon after the root")
    if trace["nesterov"] or trace.get("accumulator_dtype") is not None:
        return OnWorker("is an RMSprop with Nesterov's momentum, or one in another dtype")
    arguments = {"rho": rms["decay"], "epsilon": rms["eps"], "momentum": float(trace["decay"])}
    return OnServer(RMSprop, arguments)


def _optax_adadelta(hyper: Mapping[str, Hyperparameters]) -> Place:
    return OnServer(
        Adadelta,
        {"rho": hyper["scale_by_adadelta"]["rho"], "epsilon": hyper["scale_by_adadelta"]["eps"]},
    )


_CHAINS: dict[tuple[str, ...], Callable[[Mapping[str, Hyperparameters]], Place]] = {
    (): _optax_sgd,
    ("trace",): _optax_sgd,
    ("scale_by_adam",): _optax_adam,
    ("scale_by_adam", "add_decayed_weights"): _optax_adam,
    ("scale_by_adam", "scale_by_trust_ratio"): _optax_lamb,
    ("scale_by_adam", "add_decayed_weights", "scale_by_trust_ratio"): _optax_lamb,
    ("scale_by_lion",): _optax_lion,
    ("scale_by_lion", "add_decayed_weights"): _optax_lion,
    ("scale_by_rss",): _optax_adagrad,
    ("scale_by_rms",): _optax_rmsprop,
    ("scale_by_adadelta",): _optax_adadelta,
}
_OPTAX = {
    (*chain, rate): entry
    for chain, entry in _CHAINS.items()
    for rate in ("scale", "scale_by_schedule")
} | {("scale_by_rms", rate, "trace"): _optax_rmsprop for rate in ("scale", "scale_by_schedule")}
