"""Train a PyTorch module on parameter servers: its gradients by PyTorch, the rest by hand.

A small network on scikit-learn's 1,797 scanned digits. Alone, or on a cluster of this machine:

    python examples/pytorch_by_hand.py
    ropewalk local --workers 2 --ps 2 examples/pytorch_by_hand.py

It ends with 90 % of the test digits or more, which others wrote than the training digits.
"""

import copy

import torch
from sklearn.datasets import load_digits

import ropewalk as rw

STEPS = 400  # of all workers together
GLOBAL_BATCH = 64  # of a worker, for all of its replicas

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    variables = {
        name: rw.Variable(parameter.detach().numpy(), name=name)
        for name, parameter in module.named_parameters()
    }
optimizer = rw.optimizers.Adam(3e-3)
# Replicas are threads of this process: each has a module to itself.
modules = [copy.deepcopy(module) for _ in strategy.extended.worker_devices]


def load_values(own):
    """Give a module the variables' values; torch.tensor copies, as they are read-only."""
    own.load_state_dict({name: torch.tensor(v.read_value()) for name, v in variables.items()})


def step(batch):
    images, labels = batch
    replica = rw.distribute.get_replica_context().replica_id_in_sync_group
    own = modules[replica % len(modules)]
    load_values(own)
    own.zero_grad()
    loss = torch.nn.functional.cross_entropy(own(images), labels, reduction="sum") / GLOBAL_BATCH
    loss.backward()
    optimizer.apply_gradients((p.grad, variables[name]) for name, p in own.named_parameters())
    return loss.item()


digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images[:1200], labels[:1200]),
    batch_size=GLOBAL_BATCH,
    shuffle=True,
    generator=torch.Generator().manual_seed(strategy.task_index),  # each worker its own order
)
batches = strategy.experimental_distribute_dataset(loader)
while strategy.global_step < STEPS:
    for batch in batches:
        loss = strategy.reduce("SUM", strategy.run(step, args=(batch,)))
        rw.training.report(loss=loss, total_steps=STEPS)

if strategy.is_chief:
    load_values(module)
    accuracy = (module(images[1200:]).argmax(1) == labels[1200:]).float().mean()
    print(f"test accuracy {accuracy:.4f}")
