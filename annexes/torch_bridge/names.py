"""Names of parameters and buffers of PyTorch."""

from typing import Any

SHARED = "_ropewalk_shared"
"""Attribute of an optimizer of PyTorch: a :class:`DistributedOptimizer` has it."""


def named_parameters(optimizer: Any, module: Any, prefix: str) -> dict[str, Any]:
    """Find the optimizer's parameters by name, in its order.

    Args:
        optimizer: Optimizer of ``torch.optim``.
        module: Module whose names count; None: those that the optimizer has, else numbers.
        prefix: Prefix of the names.

    Raises:
        ValueError: The module lacks one of them.
    """
    names: dict[int, str] = {}
    if module is not None:
        names = {id(p): plain_name(name) for name, p in module.named_parameters()}
    named: dict[str, Any] = {}
    for group in optimizer.param_groups:
        own_names = group.get("param_names") or [None] * len(group["params"])
        for parameter, own in zip(group["params"], own_names, strict=True):
            name = names.get(id(parameter), own)
            if name is None and module is not None:
                raise ValueError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not "
                    "one of the module's; give DistributedOptimizer the module whose "
                    "parameters() the optimizer was made with. A parameter beside it, such as a "
                    "learned weight of a loss, goes along in a module of its own: "
                    "rw.training.torch.prepare(strategy, module, "
                    "torch.nn.ParameterList([weight]), optimizer)"
                )
            name = name or f"parameter_{len(named)}"
            named[f"{prefix}/{name}" if prefix else name] = parameter
    return named


def named_buffers(module: Any, prefix: str) -> dict[str, Any]:
    """Find a module's buffers that are kept in its ``state_dict``, by name."""
    lasting = module.state_dict(keep_vars=True)
    return {
        f"{prefix}/{plain_name(name)}" if prefix else plain_name(name): buffer
        for name, buffer in module.named_buffers()
        if name in lasting
    }


def plain_name(name: str) -> str:
    """Remove from a name what ``torch.compile`` puts in it."""
    return name.replace("_orig_mod.", "")
