"""Rows about launchers: each task has its GPU, and gives it back."""

import subprocess
import time

from ropewalk.launch.local.gpus import machines_gpus

from ..programs import is_played, local
from ..rows import Skip, row

_PAGE = "docs/gpu.md"
_PROGRAM = """
import os
import torch
import ropewalk as rw

device = "cuda" if torch.cuda.is_available() else "cpu"
module = torch.nn.Linear(4, 1).to(device)
strategy = rw.distribute.ParameterServerStrategy()
module, optimizer = rw.training.torch.prepare(
    strategy, module, torch.optim.SGD(module.parameters(), 0.1)
)
x = torch.ones(8, 4, device=device)
for _ in range(10):
    optimizer.zero_grad()
    (module(x) - 1).square().mean().backward()
    optimizer.step()
seen = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
print(f"computed on {device} of {seen} as {os.getpid()}", flush=True)
"""


def _seen(output: str) -> list[str]:
    """What each task saw, of the lines that it wrote."""
    return [
        line.partition("computed on ")[2] for line in output.splitlines() if "computed on" in line
    ]


@row(_PAGE, wanted="3 tasks with GPUs", needs=["torch"], limit_s=120)
def tasks() -> str:
    """`ropewalk local` gives each task that runs the program a GPU, in turn if there are fewer."""
    seen = _seen(local(_PROGRAM, "--workers", "2", "--ps", "2"))
    assert len(seen) == 3, f"{len(seen)} tasks of 3 have written"
    if not is_played():
        assert all(each.startswith("cuda") for each in seen), seen
        shares = {each.split()[2] for each in seen}
        assert len(shares) == min(3, len(machines_gpus())), seen
    return "; ".join(each.partition(" as ")[0] for each in seen)


@row(_PAGE, wanted="a task for each GPU", needs=["torch"], on_card=True, limit_s=120)
def auto() -> str:
    """`--workers auto` starts a worker for each GPU."""
    seen = _seen(local(_PROGRAM, "--no-chief", "--workers", "auto"))
    shares = [each.split()[2] for each in seen]
    assert sorted(shares) == sorted(set(machines_gpus())), f"the workers have {shares}"
    return f"{len(shares)} workers"


@row(_PAGE, wanted="free within 2 s", needs=["torch"], on_card=True, limit_s=120)
def given_back() -> str:
    """When a job has ended, none of its tasks is on a GPU."""
    pids = {each.rpartition(" ")[2] for each in _seen(local(_PROGRAM, "--workers", "2"))}
    time.sleep(2)
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Skip("nvidia-smi does not say who is on a GPU")
    left = pids & set(done.stdout.split())
    assert not left, f"{len(left)} tasks are still there"
    return f"{len(pids)} tasks are gone"
