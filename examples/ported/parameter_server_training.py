"""Train asynchronously on parameter servers, which hold an embedding cut into shards.

After TensorFlow's tutorial "Parameter server training with ParameterServerStrategy", whose custom
loop has 55 lines without its data and the start of its cluster:
https://www.tensorflow.org/tutorials/distribute/parameter_server_training
There one coordinator sends the step to the workers; here every worker runs this program.

    python examples/ported/parameter_server_training.py
    ropewalk local --workers 2 --ps 2 examples/ported/parameter_server_training.py

It ends with 95 % of the examples of its last epoch right, or more.
"""

import numpy as np

import ropewalk as rw

WORDS = ["anchor", "barge", "capstan", "davit", "fender", "galley", "ropewalk"]
EPOCHS, STEPS_PER_EPOCH = 4, 50  # of all workers together
BATCH = 32


def load_examples(count: int = 200):
    """Three different words each, as numbers; 1 if "anchor" is among them."""
    rng = np.random.default_rng(0)
    words = np.stack([rng.choice(len(WORDS), 3, replace=False) for _ in range(count)])
    return words, (words == WORDS.index("anchor")).any(axis=1).astype(np.float32)


strategy = rw.distribute.ParameterServerStrategy(
    variable_partitioner=rw.distribute.partitioners.FixedShardsPartitioner(num_shards=2)
)
with strategy.scope():
    embedding = rw.Variable(
        initializer=rw.Initializer("random_uniform", seed=1),
        shape=(len(WORDS), 1024),
        name="embedding",
    )
    kernel = rw.Variable(
        initializer=rw.Initializer("glorot_uniform", seed=2), shape=(1024, 1), name="kernel"
    )
    bias = rw.Variable(np.zeros(1, np.float32), name="bias")
    optimizer = rw.optimizers.RMSprop(0.01)
    accuracies = [rw.metrics.BinaryAccuracy() for _ in range(EPOCHS)]


def step(batch, accuracy):
    words, labels = batch
    mean = embedding.sparse_read(words).mean(axis=1)
    probability = 1 / (1 + np.exp(-(mean @ kernel.read_value() + bias.read_value())[:, 0]))
    d_logit = (probability - labels)[:, None] / len(labels)
    d_rows = np.repeat(d_logit @ kernel.read_value().T / 3, 3, axis=0)
    optimizer.apply_gradients(
        [
            (rw.IndexedSlices(d_rows, words.ravel()), embedding),
            (mean.T @ d_logit, kernel),
            (d_logit.sum(axis=0), bias),
        ]
    )
    accuracy.update_state(labels, probability)


batches = iter(
    strategy.experimental_distribute_dataset(
        rw.data.from_arrays(load_examples(), BATCH, epochs=None)
    )
)
for epoch, accuracy in enumerate(accuracies):
    while strategy.global_step < (epoch + 1) * STEPS_PER_EPOCH:
        strategy.run(step, args=(next(batches), accuracy))
    if strategy.is_chief:
        print(f"epoch {epoch + 1}: accuracy {accuracy.result():.4f}")  # of all workers
