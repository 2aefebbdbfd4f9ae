"""Train on all devices of one machine in sync, with a loop of one's own.

After TensorFlow's tutorial "Custom training with tf.distribute.Strategy", whose code has 101 lines
without its data: https://www.tensorflow.org/tutorials/distribute/custom_training

    python examples/ported/custom_training.py

It ends with 95 % of the test digits or more.
"""

import tempfile

import numpy as np
from common import Dense, classify, load_digits

import windlass as wl

EPOCHS = 10

wl.config.set_logical_cpu_devices(2)  # on a machine with GPUs: one replica on each of them
strategy = wl.distribute.MirroredStrategy()
print("number of devices:", strategy.num_replicas_in_sync)
global_batch = 32 * strategy.num_replicas_in_sync

train, test = load_digits()
train_batches = strategy.experimental_distribute_dataset(wl.data.from_arrays(train, global_batch))
test_batches = strategy.experimental_distribute_dataset(
    wl.data.from_arrays(test, global_batch, shuffle=False)
)

with strategy.scope():
    model = Dense([64, 64, 10])
    optimizer = wl.optimizers.Adam(3e-3)
    checkpoint = wl.Checkpoint(model.variables)


def train_step(batch):
    loss, correct, gradients = classify(model, *batch, global_batch)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    return loss, correct


def test_step(batch):
    images, labels = batch
    return (model(images).argmax(axis=1) == labels).sum()


with tempfile.TemporaryDirectory() as directory:
    for epoch in range(EPOCHS):
        total_loss = correct = batches = 0
        for batch in train_batches:
            results = strategy.run(train_step, args=(batch,))
            loss, right = strategy.reduce("SUM", results)
            total_loss, correct, batches = total_loss + loss, correct + right, batches + 1

        test_correct = sum(
            strategy.reduce("SUM", strategy.run(test_step, args=(batch,))) for batch in test_batches
        )
        if epoch % 2 == 1:
            checkpoint.save(directory)
        print(
            f"epoch {epoch + 1}: loss {total_loss / batches:.4f}, accuracy "
            f"{correct / len(train[1]):.4f}, test accuracy {test_correct / len(test[1]):.4f}"
        )

    # What a strategy saved can be restored by another one, or without any.
    restored = Dense([64, 64, 10], seed=1)
    wl.Checkpoint(restored.variables).restore(directory)
    images, labels = test
    print(f"accuracy {np.mean(restored(images).argmax(axis=1) == labels):.4f}")
