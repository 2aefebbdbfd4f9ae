"""A whole cluster in one process: the first form of TensorFlow's parameter-server tutorial.

    python in_one_process.py

Servers and the coordinator are threads of this program, with real connections between them: a way
to try a program before there is a cluster. Nobody names a chief: the program that makes a strategy
over a cluster of servers is it.
"""

import socket

import numpy as np

import ropewalk as rw


def free_ports(count):
    """Ports of this machine that nobody listens at."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def create_in_process_cluster(num_workers, num_ps):
    """Start servers; the resolver names them, and no task of this program's own."""
    ports = free_ports(num_workers + num_ps)
    cluster = {
        "worker": [f"127.0.0.1:{port}" for port in ports[:num_workers]],
        "ps": [f"127.0.0.1:{port}" for port in ports[num_workers:]],
    }
    spec = rw.train.ClusterSpec(cluster)
    for job, addresses in cluster.items():
        for index in range(len(addresses)):
            rw.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc")
    return rw.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


strategy = rw.distribute.ParameterServerStrategy(create_in_process_cluster(2, 2))
with strategy.scope():
    weights = rw.Variable(np.zeros((3, 1), np.float32), name="weights")
optimizer = rw.optimizers.SGD(0.1)
coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)


def dataset_fn():
    worker = rw.distribute.coordinator.experimental_get_current_worker_index()
    x = np.random.default_rng(worker).normal(size=(512, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
    return rw.data.from_arrays((x, y), batch_size=32, epochs=None)


def step_fn(iterator):
    def replica_fn(batch):
        x, y = batch
        error = x @ weights.read_value() - y
        optimizer.apply_gradients([(x.T @ error / len(x), weights)])
        return (error**2).mean()

    return strategy.reduce("MEAN", strategy.run(replica_fn, args=(next(iterator),)))


iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
losses = [coordinator.schedule(step_fn, args=(iterator,)) for _ in range(300)]
coordinator.join()
print(f"loss {np.mean(coordinator.fetch(losses[-20:])):.5f}")
print("weights", weights.numpy().ravel().round(2))
