"""Rows about failures: what goes wrong on a GPU ends with an error, not with a wait."""

import time
from functools import partial

from ..programs import local_to_its_end
from ..rows import row as any_row

row = partial(any_row, only_one=True)

_STEPS = """
import torch
import ropewalk as rw

module = torch.nn.Linear(4, 1).cuda()
strategy = rw.distribute.ParameterServerStrategy()
module, optimizer = rw.training.torch.prepare(
    strategy, module, torch.optim.SGD(module.parameters(), 0.1)
)
x = torch.ones(8, 4, device="cuda")
for number in range(20):
    optimizer.zero_grad()
    loss = (module(x) - 1).square().mean()
    if number == 5:
        {fails}
    loss.backward()
    optimizer.step()
"""
_BAD_KERNEL = "torch.ones(8, device='cuda')[torch.full((4,), 10**9, device='cuda')].sum().item()"


def _ends(fails: str, error: str) -> str:
    """Run a program of which each task fails; how its job ended."""
    start = time.monotonic()
    done = local_to_its_end(_STEPS.format(fails=fails), "--workers", "2", "--ps", "1")
    took_s = time.monotonic() - start
    assert done.code != 0, "the job ended as if nothing had been"
    assert error in done.output, f"no {error}: {done.output[-300:]}"
    return f"exit code {done.code} after {took_s:.0f} s"


@row("docs/gpu.md", wanted="the job ends and says why", needs=["torch"], on_card=True, limit_s=75)
def out_of_memory() -> str:
    """A step that asks for more memory than there is ends the job, with PyTorch's error."""
    return _ends("torch.empty(1 << 50, device='cuda')", "OutOfMemoryError")


@row("docs/gpu.md", wanted="the job ends and says why", needs=["torch"], on_card=True, limit_s=75)
def bad_kernel() -> str:
    """A kernel that fails on the GPU ends the job, with CUDA's error."""
    return _ends(_BAD_KERNEL, "CUDA error")
