"""What several of the ported programs use: a data set, and a network of dense layers in NumPy.

The network plays the part of the Keras model in the originals: it creates its variables where it is
made, in a strategy's scope, and knows its own gradients.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits as _load_digits

import ropewalk as rw


def load_digits():
    """1,797 scanned digits as (train, test): pixels in [0, 1], shape (n, 64), and labels (n,)."""
    digits = _load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target
    order = np.random.default_rng(7).permutation(len(labels))
    test, train = order[:300], order[300:]
    return (images[train], labels[train]), (images[test], labels[test])


def softmax(logits):
    """Probabilities of each row; of no rows, none."""
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


class Dense:
    """Dense layers with ReLU between them. Make it in ``with strategy.scope():``.

    Attributes:
        variables: kernel, bias, kernel, bias … of the layers in order.
    """

    def __init__(self, sizes: Sequence[int], name: str = "dense", seed: int = 0):
        rng = np.random.default_rng(seed)
        self.variables = []
        for number, (inputs, outputs) in enumerate(pairwise(sizes)):
            kernel = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
            bias = np.zeros(outputs, np.float32)
            self.variables.append(rw.Variable(kernel, name=f"{name}/{number}/kernel"))
            self.variables.append(rw.Variable(bias, name=f"{name}/{number}/bias"))

    def __call__(self, x, values: Mapping[str, np.ndarray] | None = None):
        """Outputs of the last layer, (n, sizes[-1]); of ``values`` by name instead of its own."""
        return self._layers(x, self._read(values))[-1]

    def gradients(self, x, d_outputs_of):
        """(outputs, gradients of the variables, gradient of x).

        Args:
            x: Inputs, (n, sizes[0]).
            d_outputs_of: Given the outputs, the gradient of the loss with respect to them.
        """
        values = self._read(None)
        *inputs, outputs = self._layers(x, values)
        gradient, of_variables = d_outputs_of(outputs), []
        for number in reversed(range(len(inputs))):
            of_variables[:0] = [inputs[number].T @ gradient, gradient.sum(axis=0)]
            gradient = gradient @ values[2 * number].T
            if number:
                gradient = gradient * (inputs[number] > 0)
        return outputs, of_variables, gradient

    def _read(self, values: Mapping[str, np.ndarray] | None):
        return [v.read_value() if values is None else values[v.name] for v in self.variables]

    @staticmethod
    def _layers(x, values):
        """Inputs of every layer, then the outputs of the last."""
        layers = [x]
        for number in range(0, len(values), 2):
            x = layers[-1] @ values[number] + values[number + 1]
            layers.append(np.maximum(x, 0) if number + 2 < len(values) else x)
        return layers


def classify(network: Dense, x, y, global_batch: int):
    """Cross-entropy of a part of a batch: (its share of the batch's mean, logits, gradients).

    The gradients of the replicas add up to those of the mean over the global batch.
    """

    def d_logits(logits):
        return (softmax(logits) - np.eye(logits.shape[1], dtype=np.float32)[y]) / global_batch

    logits, gradients, _ = network.gradients(x, d_logits)
    losses = -np.log(softmax(logits)[np.arange(len(y)), y] + 1e-9)
    loss = rw.nn.compute_average_loss(losses, global_batch_size=global_batch)
    return loss, logits, gradients
