"""Train on several workers in sync, and go on from the last checkpoint after a restart.

After TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy", whose
main.py and model have 102 lines:
https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl

    python examples/ported/multi_worker_custom_loop.py
    windlass local --ps 0 --no-chief --workers 2 examples/ported/multi_worker_custom_loop.py

It ends with 95 % of the training digits or more. Given a directory, it keeps checkpoints there: run
it again with more epochs, on any number of workers, and it goes on.
"""

import argparse

from common import Dense, classify, load_digits

import windlass as wl
from windlass.core.checkpoint import latest_checkpoint

PER_REPLICA_BATCH = 32

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--checkpoints", default="", help="directory that all workers can reach")
arguments = parser.parse_args()

strategy = wl.distribute.MultiWorkerMirroredStrategy()
global_batch = PER_REPLICA_BATCH * strategy.num_replicas_in_sync


def dataset_fn(context: wl.distribute.InputContext):
    """This worker's part of the data, in batches for one replica."""
    part = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    images, labels = load_digits()[0]
    batch = context.get_per_replica_batch_size(global_batch)
    return wl.data.from_arrays((images[part], labels[part]), batch, epochs=None)


with strategy.scope():
    model = Dense([64, 64, 10])
    optimizer = wl.optimizers.RMSprop(4e-3)
    epoch = wl.Variable(0, name="epoch", trainable=False)

dataset = strategy.distribute_datasets_from_function(dataset_fn)
steps_per_epoch = len(load_digits()[0][1]) // global_batch
checkpoint = wl.Checkpoint([*model.variables, epoch], keep=1)


def train_step(batch):
    loss, correct, gradients = classify(model, *batch, global_batch)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    return loss, correct


if arguments.checkpoints and latest_checkpoint(arguments.checkpoints):
    checkpoint.restore(arguments.checkpoints)

while epoch.numpy() < arguments.epochs:
    iterator = iter(dataset)
    total_loss = correct = 0
    for _ in range(steps_per_epoch):
        loss, right = strategy.reduce("SUM", strategy.run(train_step, args=(next(iterator),)))
        total_loss, correct = total_loss + loss, correct + right
    epoch.assign_add(1)
    if arguments.checkpoints:
        checkpoint.save(arguments.checkpoints, int(epoch.numpy()))  # the first worker writes
    if strategy.extended.should_checkpoint:
        accuracy = correct / (steps_per_epoch * global_batch)
        print(f"epoch {epoch.numpy()}: loss {total_loss / steps_per_epoch:.4f}")
        print(f"accuracy {accuracy:.4f}")
