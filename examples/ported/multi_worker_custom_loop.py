"""Train on several workers in sync, and go on from the last checkpoint after a restart.

After TensorFlow's tutorial "Custom training loop with Keras and MultiWorkerMirroredStrategy", whose
main.py and model have 102 lines:
https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl

    python examples/ported/multi_worker_custom_loop.py
    ropewalk local --ps 0 --no-chief --workers 2 examples/ported/multi_worker_custom_loop.py

It ends with 95 % of the training digits or more. Run it again with more epochs, on any number of
workers, and it goes on from the checkpoint it left.
"""

import argparse

from common import Dense, classify, load_digits

import ropewalk as rw

PER_REPLICA_BATCH = 32

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--checkpoints", default="checkpoints", help="directory for all workers")
arguments = parser.parse_args()

strategy = rw.distribute.MultiWorkerMirroredStrategy()
global_batch = PER_REPLICA_BATCH * strategy.num_replicas_in_sync


def dataset_fn(context: rw.distribute.InputContext):
    """This worker's part of the data, in batches for one replica."""
    part = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    images, labels = load_digits()[0]
    batch = context.get_per_replica_batch_size(global_batch)
    return rw.data.from_arrays((images[part], labels[part]), batch, epochs=None)


with strategy.scope():
    model = Dense([64, 64, 10])
    optimizer = rw.optimizers.RMSprop(4e-3)
    accuracy = rw.metrics.SparseCategoricalAccuracy()
    epoch = rw.Variable(0, name="epoch", trainable=False)

dataset = strategy.distribute_datasets_from_function(dataset_fn)
steps_per_epoch = len(load_digits()[0][1]) // global_batch
checkpoint = rw.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
manager = rw.train.CheckpointManager(checkpoint, arguments.checkpoints, max_to_keep=1)


def train_step(batch):
    images, labels = batch
    loss, logits, gradients = classify(model, images, labels, global_batch)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    accuracy.update_state(labels, logits)
    return loss


manager.restore_or_initialize()
while int(epoch) < arguments.epochs:
    iterator = iter(dataset)
    total_loss = 0.0
    for _ in range(steps_per_epoch):
        total_loss += strategy.reduce("SUM", strategy.run(train_step, args=(next(iterator),)))
    epoch.assign_add(1)
    manager.save()  # all workers call it, the first one writes
    loss, reached = total_loss / steps_per_epoch, accuracy.result()  # of all workers
    if strategy.extended.should_checkpoint:
        print(f"epoch {int(epoch)}: loss {loss:.4f}, accuracy {reached:.4f}")
    accuracy.reset_state()
