"""Train on all devices of one machine in sync, with a loop of one's own.

After TensorFlow's tutorial "Custom training with tf.distribute.Strategy", whose code has 101 lines
without its data: https://www.tensorflow.org/tutorials/distribute/custom_training

    python examples/ported/custom_training.py

It ends with 95 % of the test digits or more.
"""

import tempfile

from common import Dense, classify, load_digits

import ropewalk as rw

EPOCHS = 10

rw.config.set_logical_cpu_devices(2)  # on a machine with GPUs: one replica on each of them
strategy = rw.distribute.MirroredStrategy()
print("number of devices:", strategy.num_replicas_in_sync)
global_batch = 32 * strategy.num_replicas_in_sync

train, test = load_digits()
train_batches = strategy.experimental_distribute_dataset(rw.data.from_arrays(train, global_batch))
test_batches = strategy.experimental_distribute_dataset(
    rw.data.from_arrays(test, global_batch, shuffle=False)
)

with strategy.scope():
    model = Dense([64, 64, 10])
    optimizer = rw.optimizers.Adam(3e-3)
    train_accuracy = rw.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = rw.metrics.SparseCategoricalAccuracy(name="test_accuracy")
checkpoint = rw.train.Checkpoint(model=model, optimizer=optimizer)


def train_step(batch):
    images, labels = batch
    loss, logits, gradients = classify(model, images, labels, global_batch)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    train_accuracy.update_state(labels, logits)
    return loss


def test_step(batch):
    images, labels = batch
    test_accuracy.update_state(labels, model(images))


directory = tempfile.mkdtemp()
for epoch in range(EPOCHS):
    total_loss = batches = 0
    for batch in train_batches:
        total_loss += strategy.reduce("SUM", strategy.run(train_step, args=(batch,)))
        batches += 1
    for batch in test_batches:
        strategy.run(test_step, args=(batch,))
    if epoch % 2 == 1:
        checkpoint.save(f"{directory}/ckpt")
    print(
        f"epoch {epoch + 1}: loss {total_loss / batches:.4f}, accuracy "
        f"{train_accuracy.result():.4f}, test accuracy {test_accuracy.result():.4f}"
    )
    train_accuracy.reset_state()
    test_accuracy.reset_state()

# What one strategy saved another restores, and so does a program without any.
restored = Dense([64, 64, 10], seed=1)
rw.train.Checkpoint(model=restored).restore(rw.train.latest_checkpoint(directory))
images, labels = test
accuracy = rw.metrics.SparseCategoricalAccuracy()
print(f"restored, with accuracy {accuracy(labels, restored(images)):.4f}")
