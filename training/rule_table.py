"""Maps an optimizer's configuration to a rule that runs where the arrays are.

Pure: frameworks describe their optimizers by a name and its hyperparameters, as plain numbers; what
comes back is a rule, or the reason why there is none. The entries are those of the rules
(``core/rules/update_rules.py``). One maps an optimizer only if the rule's formula is the same but
for rounding: a program that is moved here has the curve it had.

Without a rule the optimizer runs on the worker and its changes are pushed as deltas. With several
asynchronous workers that means: each has a state of its own, made of its own gradients alone, and
the deltas of all add up, in whatever order they arrive; none is lost and none counts twice. The
state is not in the job's checkpoints. Workers in sync give their optimizers the same reduced
gradients, and their states are equal.

Sources: the documentation of ``torch.optim`` (2.13), optax (0.2.8) and Keras (3.15), whose formulas
the files of ``core/rules/built_in`` compare.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..core.rules.known_rules import built_in, built_in_rules, is_built_in
from ..core.rules.update_rules import Entry, Hyperparameters, OnServer, OnWorker, Place
from ..distribute.optimizer import Optimizer

_RATES = ("scale", "scale_by_schedule")


def optimizer_of(place: OnServer) -> Optimizer:
    """Make an optimizer with the rule of a place."""
    return Optimizer(built_in(place.rule), **place.arguments)


def place_torch(name: str, group: Hyperparameters) -> Place:
    """Choose where a ``torch.optim`` optimizer runs.

    Args:
        name: Name of the optimizer's class.
        group: Group of its ``param_groups``, without the parameters.
    """
    if group.get("maximize"):
        return OnWorker("maximizes, rules minimize")
    entry = torch_entries().get(name)
    return OnWorker("has no rule") if entry is None else entry(group)


def place_keras(name: str, config: Hyperparameters) -> Place:
    """Choose where a ``keras.optimizers`` optimizer runs.

    Args:
        name: Name of the optimizer's class.
        config: Configuration by its ``get_config()``, with the rate as a number or as a callable of
            the step.
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
    return _by_its_fields(name, config) if is_built_in(name) else OnWorker("has no rule")


def place_optax(parts: Sequence[tuple[str, Hyperparameters]]) -> Place:
    """Choose where a chain of optax transformations runs.

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
    entry = optax_entries().get(tuple("rate" if name in _RATES else name for name in chain))
    rate = next((hyper[name]["rate"] for name in _RATES if name in hyper), 0)
    if entry is None or not (callable(rate) or rate > 0):
        shown = " > ".join(name for name, _ in parts) or "of nothing"
        return OnWorker(f"is a chain that no rule carries out: {shown}")
    place = entry(hyper)
    if isinstance(place, OnServer):
        arguments = {**place.arguments, **clipping, "learning_rate": rate}
        return OnServer(place.rule, arguments, decay)
    return place


@cache
def torch_entries() -> Mapping[str, Entry]:
    """List the entries by the names of classes of ``torch.optim``."""
    return {
        name: entry for rule in built_in_rules() for name, entry in rule.counterparts.torch.items()
    }


@cache
def optax_entries() -> Mapping[tuple[str, ...], Entry]:
    """List the entries by the names of chains of optax transformations, with ``rate`` for the
    rate's.
    """
    return {
        chain: entry
        for rule in built_in_rules()
        for chain, entry in rule.counterparts.optax.items()
    }


def _by_its_fields(name: str, config: Hyperparameters) -> Place:
    """Take the fields over: the rules are those of Keras, and what a rule's fields are called,
    Keras calls it, too.
    """
    choose = built_in(name).counterparts.keras
    rule = name if choose is None else choose(config)
    if isinstance(rule, OnWorker):
        return rule
    fields = built_in(rule).model_fields
    decay = config.get("weight_decay")
    if decay and "weight_decay" not in fields:
        return OnWorker(f"decays weights (weight_decay={decay:g}), which its rule does not")
    taken = {
        field: value
        for field, value in config.items()
        if field in fields and field != "name" and value is not None
    }
    if "weight_decay" in fields:
        taken["weight_decay"] = float(decay or 0.0)  # None means none here, not the default
    return OnServer(rule, taken)
