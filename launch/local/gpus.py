"""Division of the machine's GPUs among the tasks of a local cluster."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from ...core.errors import ConfigurationError
from ...core.process.accelerators import count_node_gpus
from ...core.showing import counted
from ...core.task import TaskId

VISIBLE = "CUDA_VISIBLE_DEVICES"
_JAX_MEMORY = "XLA_PYTHON_CLIENT_"
_SHARED = {
    # JAX' first process takes three quarters of a GPU's memory, TensorFlow's all of it; then there
    # is not enough for the others.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


def visible_gpus(named: str | None) -> list[str]:
    """List the GPUs that the launcher may use.

    Args:
        named: Names of the GPUs as ``CUDA_VISIBLE_DEVICES`` has them; None: all of the machine.
    """
    if named is None:
        return [str(number) for number in range(count_node_gpus())]
    names = [stripped for name in named.split(",") if (stripped := name.strip())]
    return list(takewhile(lambda name: name != "-1", names))  # where CUDA stops, too


def divide_gpus(
    tasks: Sequence[TaskId], gpus: Sequence[str], each: int = 1
) -> dict[TaskId, list[str]]:
    """Divide the GPUs among the tasks; where there are too few of them, tasks share one.

    Args:
        tasks: Tasks that run the program.
        gpus: Names of the GPUs.
        each: GPUs for each task. One is what programs of PyTorch take, and what most others are
            written for.

    Raises:
        ConfigurationError: There are too few for more than one each.
    """
    if not gpus or not tasks:
        return {}
    if each > 1 and each * len(tasks) > len(gpus):
        raise ConfigurationError(
            f"{len(tasks)} tasks that run the program and {each} GPUs for each take "
            f"{each * len(tasks)} GPUs, and there are {len(gpus)} ({', '.join(gpus)}); start fewer "
            "workers, or give each fewer GPUs (--gpus-per-worker, resources.gpu of a job file)"
        )
    if len(tasks) > len(gpus):
        return {task: [gpus[i % len(gpus)]] for i, task in enumerate(tasks)}
    return {task: list(gpus[i * each : (i + 1) * each]) for i, task in enumerate(tasks)}


def gpu_variables(
    task: TaskId, shares: Mapping[TaskId, Sequence[str]], given: Mapping[str, str]
) -> dict[str, str]:
    """Set the variables by which the libraries of a task keep to its GPUs.

    Args:
        task: The task.
        shares: GPUs of all tasks, by :func:`divide_gpus`.
        given: Variables that the task has already: what they say of memory counts.
    """
    own = shares.get(task)
    if own is None:
        return {}
    variables = {VISIBLE: ",".join(own)}
    if sum(own[0] in others for others in shares.values()) > 1:
        of_user = any(name.startswith(_JAX_MEMORY) for name in given)
        variables |= {
            name: value
            for name, value in _SHARED.items()
            if name not in given and not (of_user and name.startswith(_JAX_MEMORY))
        }
    return variables


def describe_shares(shares: Mapping[TaskId, Sequence[str]]) -> str:
    """Describe the GPUs' division; empty: there are none."""
    if not shares:
        return ""
    count = len({gpu for own in shares.values() for gpu in own})
    tasks = len(shares)
    if count < tasks:
        return f"{tasks} tasks share {counted(count, 'GPU')}"
    gpus = counted(len(next(iter(shares.values()))), "GPU")
    return f"{counted(tasks, 'task')} {'has' if tasks == 1 else 'have'} {gpus} each"
