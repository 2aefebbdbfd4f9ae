"""Train a DLRM in PyTorch: 26 tables on parameter servers, two networks, dot products between them.

The model of ``dlrm_jax.py`` as a module in TorchRec's style: an ``EmbeddingBagCollection`` has the
tables, and the gradients of rows travel in the push of the optimizer's step. The rows of the next
batch are looked up while this one computes.

    python examples/dlrm_torch.py
    ropewalk local --workers 2 --ps 2 examples/dlrm_torch.py

It ends with an area under the curve (AUC) of 0.69 or more on new visits. The probabilities that the
clicks were drawn with reach 0.84, the best of the numbers alone 0.60. Visits are made up, by
``criteo_like.py``.
"""

import argparse
import itertools

import torch
from criteo_like import NUMBERS, SIZES, load_clicks
from sklearn.metrics import roc_auc_score

import ropewalk as rw

DIM, BATCH = 8, 512  # numbers of a row; examples

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400, help="of all workers together")
STEPS = parser.parse_args().steps


class DLRM(torch.nn.Module):
    """The model, of two networks and the tables."""

    def __init__(self, embeddings):
        super().__init__()
        pairs = torch.triu_indices(1 + len(SIZES), 1 + len(SIZES), 1)
        self.embeddings, self.first, self.second = embeddings, *pairs
        self.bottom = network(NUMBERS, 32, DIM)
        self.top = network(DIM + len(self.first), 64, 1)

    def forward(self, numbers, ids):
        """Logits (n,) of numbers (n, NUMBERS) and ids by feature."""
        bottom = self.bottom(numbers)
        rows = self.embeddings(ids)
        vectors = torch.stack([bottom, *(rows[name] for name in SIZES)], dim=1)
        products = torch.bmm(vectors, vectors.mT)[:, self.first, self.second]
        return self.top(torch.cat([bottom, products], dim=1))[:, 0]


def network(inputs, hidden, outputs):
    layers = torch.nn.Linear(inputs, hidden), torch.nn.Linear(hidden, outputs)
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])


def batches(seed):
    """Batches of (numbers, ids, clicks) without end."""
    for each in itertools.count(seed):
        numbers, ids, clicks, _ = load_clicks(each, BATCH)
        yield torch.from_numpy(numbers), ids, torch.from_numpy(clicks)


torch.manual_seed(0)
strategy = rw.distribute.ParameterServerStrategy()
initializer = rw.Initializer("random_normal", stddev=0.2)
tables = [rw.embedding.TableConfig(name, DIM, initializer=initializer) for name in SIZES]
embeddings = rw.training.torch.EmbeddingBagCollection(
    [rw.embedding.FeatureConfig(table.name, table) for table in tables],
    rw.optimizers.Adagrad(0.1),
    strategy,
)
module = DLRM(embeddings)
optimizer = rw.training.torch.DistributedOptimizer(
    torch.optim.Adam(module.parameters(), lr=3e-3), strategy, module=module
)
seed = 1_000_000 * (1 + strategy.task_index)  # every worker sees visits of its own
for numbers, ids, clicks in embeddings.look_ahead(batches(seed), lambda batch: batch[1]):
    if strategy.global_step >= STEPS:
        break
    optimizer.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(module(numbers, ids), clicks)
    loss.backward()
    optimizer.step()
    rw.training.report(loss=loss.item(), total_steps=STEPS)

if strategy.is_chief:
    numbers, ids, clicks, probability = load_clicks(seed=1, count=20_000)
    with torch.no_grad():
        logits = module(torch.from_numpy(numbers), ids)
    best = roc_auc_score(clicks, probability)
    print(f"loss {loss:.3f}, best {best:.3f}, AUC {roc_auc_score(clicks, logits):.4f}")
