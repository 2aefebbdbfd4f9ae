"""Train a residual network in JAX on parameter servers, with a schedule, checkpoints and evaluator.

After the ResNet example of TensorFlow's ecosystem repository, whose code has 190 lines without its
data:
https://github.com/tensorflow/ecosystem/blob/master/distribution_strategy/parameter_server_training/resnet_cifar_ps_strategy.py

    pip install '.[examples,jax]'
    python examples/ported/resnet.py
    ropewalk local --workers 2 --ps 2 --evaluator examples/ported/resnet.py

It ends with 90 % of the test digits or more.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import load_digits

import ropewalk as rw

STEPS, BATCH, CHANNELS, BLOCKS = 300, 64, 12, 2
RATE = rw.optimizers.PiecewiseConstantDecay(boundaries=[200, 260], values=[0.01, 0.003, 0.001])
DECAY = 1e-4  # of the weights


def make_variables():
    """The network's variables by name, in the current strategy's scope."""
    shapes = {"stem": (3, 3, 1, CHANNELS), "head": (CHANNELS, 10)}
    for block in range(BLOCKS):
        shapes |= {f"block{block}/{i}": (3, 3, CHANNELS, CHANNELS) for i in (0, 1)}
    variables = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        kind = "zeros" if name.endswith("/1") else "he_normal"  # a block begins as the identity
        initial = rw.Initializer(kind, seed=seed)
        variables[name] = rw.Variable(initializer=initial, shape=shape, name=name)
    return variables


def network(values, images):
    """Logits, (n, 10), of images (n, 64)."""

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x = convolve(images.reshape(-1, 8, 8, 1), values["stem"])
    for block in range(BLOCKS):
        inner = jax.nn.relu(convolve(jax.nn.relu(x), values[f"block{block}/0"]))
        x = x + convolve(inner, values[f"block{block}/1"])
    return jax.nn.relu(x).mean(axis=(1, 2)) @ values["head"]


@jax.jit
@jax.value_and_grad
def loss_and_gradients(values, images, labels):
    """Mean cross-entropy and weight decay; the gradients have the names of the values."""
    chosen = jnp.take_along_axis(network(values, images), labels[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(network(values, images), axis=1) - chosen
    decay = sum((kernel**2).sum() for kernel in values.values())
    return losses.mean() + rw.nn.scale_regularization_loss(DECAY * decay)


def evaluate(values):
    """Of variables by name, on the digits that were held out."""
    images, labels = load_digits()[1]
    return {"accuracy": np.mean(network(values, images).argmax(axis=1) == labels)}


def train():
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        variables = make_variables()
        optimizer = rw.optimizers.Adam(RATE, global_clipnorm=5.0)

    def step(batch):
        values = {name: variable.read_value() for name, variable in variables.items()}
        loss, gradients = loss_and_gradients(values, *batch)
        optimizer.apply_gradients((gradients[name], variables[name]) for name in variables)
        return loss

    data = rw.data.from_arrays(load_digits()[0], BATCH, epochs=None, drop_remainder=True)
    # Compile first: a step that took seconds would push gradients of values long gone.
    loss_and_gradients({name: v.numpy() for name, v in variables.items()}, *next(iter(data)))
    for batch in strategy.experimental_distribute_dataset(data):
        if strategy.global_step >= STEPS:
            break
        loss = strategy.reduce("MEAN", strategy.run(step, args=(batch,)))
        rw.training.report(loss=loss, total_steps=STEPS)
    return evaluate({name: variable.numpy() for name, variable in variables.items()})


if rw.training.is_evaluator():
    metrics = rw.training.SidecarEvaluator(evaluate).start()[-1].metrics
else:
    metrics = train()
print(f"accuracy {metrics['accuracy']:.4f}")
