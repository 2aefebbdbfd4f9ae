"""Parameter-server training with a coordinator: one program for every role.

    ropewalk local --coordinator --workers 2 --ps 2 examples/coordinator/train.py

or, with TF_CONFIG in each process, `python train.py` in all of them. The shape is that of
TensorFlow's tutorial on parameter-server training: workers and parameter servers make a Server and
wait, the chief makes a strategy and schedules steps. The task: does somebody like the dish whose
three ingredients are known? Ingredients have an embedding each, a logistic regression decides.
"""

import numpy as np

import ropewalk as rw

INGREDIENTS, WIDTH, PER_DISH = 40, 8, 3
EPOCHS, STEPS_PER_EPOCH, BATCH = 5, 60, 64


def dishes(seed):
    """Ingredients of 2048 dishes, and who likes them: those with more of the first half."""
    ingredients = np.random.default_rng(seed).integers(0, INGREDIENTS, (2048, PER_DISH))
    liked = (ingredients < INGREDIENTS // 2).sum(axis=1) >= 2
    return ingredients, liked.astype(np.float32)


def dataset_fn():
    worker = rw.distribute.coordinator.experimental_get_current_worker_index()
    return rw.data.from_arrays(dishes(seed=worker), batch_size=BATCH, epochs=None)


def serve(resolver):
    """A worker or parameter server: serves until the chief's program is over."""
    server = rw.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


def train():
    """The chief."""
    strategy = rw.distribute.ParameterServerStrategy(
        variable_partitioner=rw.distribute.partitioners.MinSizePartitioner(
            min_shard_bytes=256, max_shards=2
        )
    )
    with strategy.scope():
        table = rw.Variable(
            initializer=rw.Initializer("random_normal", stddev=0.1, seed=1),
            shape=(INGREDIENTS, WIDTH),
            name="ingredients",
        )
        weights = rw.Variable(np.full((WIDTH,), 0.1, np.float32), name="weights")
        bias = rw.Variable(np.zeros(1, np.float32), name="bias")
    optimizer = rw.optimizers.Adam(0.02)
    coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)

    def predict(ingredients):
        rows = rw.nn.embedding_lookup(table, ingredients)
        features = rows.mean(axis=1)
        chance = 1 / (1 + np.exp(-(features @ weights.read_value() + bias.read_value())))
        return features, chance

    def step_fn(iterator):
        def replica_fn(batch):
            ingredients, liked = batch
            features, chance = predict(ingredients)
            error = (chance - liked) / len(liked)
            per_row = error[:, None] * weights.read_value() / PER_DISH
            sparse = rw.IndexedSlices(np.repeat(per_row, PER_DISH, axis=0), ingredients.reshape(-1))
            optimizer.apply_gradients(
                [(sparse, table), (features.T @ error, weights), (error.sum(keepdims=True), bias)]
            )
            return ((chance > 0.5) == liked).mean()

        return strategy.run(replica_fn, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for epoch in range(EPOCHS):
        results = [coordinator.schedule(step_fn, args=(iterator,)) for _ in range(STEPS_PER_EPOCH)]
        coordinator.join()
        print(f"epoch {epoch}: accuracy {np.mean(coordinator.fetch(results)):.3f}", flush=True)

    ingredients, liked = dishes(seed=1000)
    accuracy = ((predict(ingredients)[1] > 0.5) == liked).mean()
    print(f"accuracy on new dishes {accuracy:.3f}")
    assert accuracy > 0.9


if __name__ == "__main__":
    resolver = rw.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train()
