"""The same step with TensorFlow's ParameterServerStrategy: one ps, one worker, gRPC on loopback.

    .venv-peers/bin/python -m benchmarks.peers.tensorflow_ps

The worker runs a graph whose variables the strategy (that of ``tf.compat.v1``) placed on the ps, as
an Estimator's worker does: it fetches every value and applies, by TensorFlow's fused kernels on the
ps, a gradient that lives on the worker. Two orders are tried in every case, and the faster is
measured and named in the result: the pull before the push, where the push does not wait for the
value to arrive so that the two may overlap, and the pull after the push.

Other ways were slower. Medians when tried, small / 4mb / 64mb, in ms, on a machine with other work:

- kept: pull before push 2.7 / 8.5 / 92, pull after push 3.2 / 9.4 / 77
- a ``tf.function`` in an eager context connected to the cluster: 4.0 / 14 / 118
- ``ClusterCoordinator.schedule`` and ``join`` per step, values left on the worker: 6.1 / 11 / 88
- four gRPC channels per target: 2.9 / 9.7 / 176

The sparse case has two ps: a table cut in two, ``tf.nn.embedding_lookup`` of ids that are fed, and
Adagrad of the gradient of that lookup. It too is tried in two ways: ``AdagradOptimizer``, which
sums repeated rows where the table is (80 ms where the other took 49); and ids made unique first, so
that the worker sums, and only that optimizer's kernel is left to the ps.

The case ``many`` is left out unless ``--cases`` names it: its set-up takes minutes (its step, once:
1277 ms).

``--start``: two ps, two workers and a chief (``ClusterCoordinator``), seconds to the first finished
step. TensorFlow's servers listen on every interface; nothing here dials anything but 127.0.0.1.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np

from ..cases import LEARNING_RATE, SPARSE, Case, SparseCase, pick
from . import harness

Cluster = dict[str, list[str]]

ORDERS = ("pull before push", "pull after push")
SPARSE_WAYS = ("AdagradOptimizer", "tf.unique first")
WORKER = "/job:worker/task:0/device:CPU:0"
# 10000 variables take 3.5 minutes, nearly all of it before the first step: measured when asked for
# by name.
MAX_VARIABLES = 1000
START_TIMEOUT_S = 120


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def addresses(**tasks: int) -> Cluster:
    return {job: [free_address() for _ in range(count)] for job, count in tasks.items()}


@contextmanager
def process(role: str, cluster: Cluster, index: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A task in a process of its own, ended with the block; it also ends when this process dies."""
    command = [sys.executable, "-m", "benchmarks.peers.tensorflow_ps"]
    with subprocess.Popen(
        [*command, "--task", role, str(index), json.dumps(cluster)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def run_task(role: str, index: int, cluster: Cluster) -> None:
    """What a started process does: serve, or be the chief of the start-up measurement."""

    def leave_with_parent() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    if role == "chief":
        first_step(cluster)
        print("done", flush=True)
        return
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=role, task_index=index).join()


def first_step(cluster: Cluster) -> None:
    """The program of a chief: variables on the ps, one step."""
    import tensorflow as tf

    case = pick(["small"])[0]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(value) for value in harness.starting_values(case)]
    values = harness.gradients(case)

    def step() -> Any:
        pulled = [tf.identity(variable.read_value()) for variable in variables]
        for variable, value in zip(variables, values, strict=True):
            _apply(tf, "sgd", variable, tf.constant(value), [])
        return pulled

    coordinator.schedule(tf.function(step))
    coordinator.join()


def start_s() -> float:
    """Seconds from starting five processes to the chief's first finished step."""
    cluster = addresses(ps=2, worker=2, chief=1)
    began = time.perf_counter()
    with (
        process("ps", cluster, 0),
        process("ps", cluster, 1),
        process("worker", cluster, 0),
        process("worker", cluster, 1),
        process("chief", cluster) as chief,
    ):
        timer = threading.Timer(START_TIMEOUT_S, chief.kill)
        timer.start()
        try:
            assert chief.stdout is not None
            if chief.stdout.readline().strip() != "done":
                raise RuntimeError(f"the chief ended without a step in {START_TIMEOUT_S} s")
            return time.perf_counter() - began
        finally:
            timer.cancel()


def _apply(tf: Any, optimizer: str, variable: Any, gradient: Any, slots: list[Any]) -> Any:
    """The fused kernel that TensorFlow's own optimizers run where the variable is."""
    if optimizer == "sgd":
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=np.float32(LEARNING_RATE["sgd"]), delta=gradient
        )
    momentum, velocity, beta1_power, beta2_power = slots
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=beta1_power.read_value(),
        beta2_power=beta2_power.read_value(),
        lr=np.float32(LEARNING_RATE["adam"]),
        beta1=np.float32(0.9),
        beta2=np.float32(0.999),
        epsilon=np.float32(1e-7),
        grad=gradient,
    )


def fastest(case: Case, target: str, cluster: Cluster, budget_s: float, check: bool) -> Any:
    """The faster of the orders: each is tried for an eighth of the budget first."""

    def tried(order: str) -> float:
        return float(measured(case, target, cluster, order, budget_s / 8, False)["median_ms"])

    # What takes minutes to set up is set up once.
    order = min(ORDERS, key=tried) if case.count <= MAX_VARIABLES else ORDERS[0]
    return {**measured(case, target, cluster, order, budget_s, check), "way": order}


def measured(
    case: Case, target: str, cluster: Cluster, order: str, budget_s: float, check: bool
) -> Any:
    """Build the graph of a case and time its step in the session at ``target``."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    pulls_first = order == ORDERS[0]
    feeds: list[tuple[Any, Any]] = []

    def fed(tensors: list[Any], initial: list[Any]) -> list[Any]:
        feeds.extend(zip(tensors, initial, strict=True))
        return tensors

    with tf.Graph().as_default():
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster),
            task_type="worker",
            task_id=0,
            num_accelerators={"GPU": 0},
        )
        strategy = tf1.distribute.experimental.ParameterServerStrategy(resolver)

        # Fed, so that megabytes of initial values do not go into the graph's definition.
        def inputs() -> list[Any]:
            return [tf1.placeholder(tf.float32, case.shape) for _ in range(case.count)]

        initial = fed(inputs(), harness.starting_values(case))
        constant = fed(inputs(), harness.gradients(case))
        with strategy.scope():
            variables = [tf1.Variable(value, use_resource=True) for value in initial]
            slots: list[list[Any]] = [[] for _ in variables]
            if case.optimizer == "adam":
                powers = [tf1.Variable(each, use_resource=True) for each in (0.9, 0.999)]
                slots = [
                    [tf1.Variable(tf.zeros(case.shape), use_resource=True) for _ in range(2)]
                    + powers
                    for _ in variables
                ]
        with tf.device(WORKER):
            held = [tf1.Variable(value, use_resource=True) for value in constant]
        pulled, applied = [], []
        for variable, gradient, slot in zip(variables, held, slots, strict=True):
            assert "/job:ps" in variable.device
            with tf.device(WORKER):
                delta = gradient.read_value()
            with tf.device(variable.device):
                if pulls_first:
                    read = variable.read_value()
                with tf.control_dependencies([read] if pulls_first else []):
                    push = _apply(tf, case.optimizer, variable, delta, slot)
                if not pulls_first:
                    with tf.control_dependencies([push]):
                        read = variable.read_value()
            applied.append(push)
            with tf.device(WORKER):
                pulled.append(tf.identity(read))
        if case.optimizer == "adam":
            with tf.control_dependencies(applied):
                applied.append(powers[0].assign(powers[0] * 0.9).op)
                applied.append(powers[1].assign(powers[1] * 0.999).op)
        done = tf.group(*applied)
        with tf1.Session(target) as session:
            session.run(tf1.global_variables_initializer(), dict(feeds))
            run = session.make_callable([pulled, done])
            return harness.measure(
                case, lambda: run()[0], budget_s=budget_s, check=check, pulls_first=pulls_first
            )


def fastest_sparse(target: str, cluster: Cluster, budget_s: float, check: bool) -> list[Any]:
    """The sparse case, the faster of the ways; the lookup and the push alone in that way."""

    def tried(way: str) -> float:
        found = measured_sparse(SPARSE, target, cluster, way, budget_s / 8, False)
        return float(found[0]["median_ms"])

    way = min(SPARSE_WAYS, key=tried)
    found = measured_sparse(SPARSE, target, cluster, way, budget_s, check)
    return [{**result, "way": way} for result in found]


def measured_sparse(
    case: SparseCase, target: str, cluster: Cluster, way: str, budget_s: float, check: bool
) -> list[dict[str, Any]]:
    """A partitioned table, ``tf.nn.embedding_lookup``, and Adagrad of its gradient."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    rate = LEARNING_RATE["adagrad"]
    with tf.Graph().as_default():
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster),
            task_type="worker",
            task_id=0,
            num_accelerators={"GPU": 0},
        )
        strategy = tf1.distribute.experimental.ParameterServerStrategy(resolver)
        with strategy.scope():
            table = tf1.get_variable(
                "table",
                (case.rows, case.width),
                initializer=tf1.ones_initializer(),
                partitioner=tf1.fixed_size_partitioner(case.ps),
                use_resource=True,
            )
        parts = list(table)
        assert len({part.device for part in parts}) == case.ps, [part.device for part in parts]
        with tf.device(WORKER):
            ids = tf1.placeholder(tf.int64, (case.ids,))
            held = tf1.Variable(
                tf1.random.normal((case.ids, case.width), seed=1), use_resource=True
            )
            gradient = held.read_value()
            wanted, inverse = tf.unique(ids) if way == SPARSE_WAYS[1] else (ids, None)
            rows = tf1.nn.embedding_lookup(table, wanted, partition_strategy="div")
            pulled = rows if inverse is None else tf.gather(rows, inverse)
            with tf.control_dependencies([pulled]):
                after = tf.identity(gradient)
            apply = _adagrad(tf, parts, fused=inverse is not None)
            both = apply(tf1.gradients(pulled, parts, grad_ys=[after]))
            alone = apply(tf1.gradients(pulled, parts, grad_ys=[gradient]))
        with tf1.Session(target) as session:
            session.run(tf1.global_variables_initializer())
            feed = [ids]
            runs = {
                case.id: session.make_callable([pulled, both], feed),
                f"{case.id}-pull": session.make_callable([pulled], feed),
                f"{case.id}-push": session.make_callable(alone, feed),
            }
            checked = 0
            if check:
                checked = _check_sparse(case, rate, session.run(held), runs[case.id])
            rng = np.random.default_rng(1)
            results = []
            for name, run in runs.items():
                times: list[float] = []
                until = time.perf_counter() + budget_s
                while len(times) < 3 + harness.MIN_STEPS or time.perf_counter() < until:
                    drawn = rng.integers(0, case.rows, case.ids)
                    began = time.perf_counter()
                    run(drawn)
                    times.append((time.perf_counter() - began) * 1000)
                result = {
                    **harness.summary(name, times[3:]), "bytes_both_ways": case.bytes_of(name)
                }  # fmt: skip
                results.append({**result, "checked": checked} if check else result)
            return results


def _adagrad(tf: Any, parts: list[Any], *, fused: bool) -> Callable[[list[Any]], Any]:
    """Applies gradients of a table's parts: TensorFlow's optimizer, or its kernel on rows."""
    tf1, rate = tf.compat.v1, LEARNING_RATE["adagrad"]
    if not fused:
        optimizer = tf1.train.AdagradOptimizer(rate, initial_accumulator_value=0.1)
        return lambda slices: optimizer.apply_gradients(list(zip(slices, parts, strict=True)))
    accumulators = []
    for part in parts:
        with tf.device(part.device):
            accumulators.append(tf1.Variable(tf.fill(part.shape, 0.1), use_resource=True))

    def apply(slices: list[Any]) -> Any:
        done = []
        for part, accumulator, gradient in zip(parts, accumulators, slices, strict=True):
            with tf.device(part.device):
                done.append(
                    tf.raw_ops.ResourceSparseApplyAdagradV2(
                        var=part.handle,
                        accum=accumulator.handle,
                        lr=np.float32(rate),
                        epsilon=np.float32(0),
                        grad=gradient.values,
                        indices=gradient.indices,
                    )
                )
        return tf.group(*done)

    return apply


def _check_sparse(case: SparseCase, rate: float, gradient: Any, step: Any) -> int:
    """Compare what three steps look up with NumPy."""
    table = np.ones((case.rows, case.width))
    accumulator = np.full(table.shape, 0.1)
    rng = np.random.default_rng(2)
    for _ in range(3):
        ids = rng.integers(0, case.rows >> 3, case.ids)
        np.testing.assert_allclose(step(ids)[0], table[ids], rtol=0, atol=1e-5)
        touched, inverse = np.unique(ids, return_inverse=True)
        total = np.zeros((touched.size, case.width))
        np.add.at(total, inverse, gradient)
        accumulator[touched] += total**2
        table[touched] -= rate * total / np.sqrt(accumulator[touched])
    return 3


def main() -> None:
    if sys.argv[1:2] == ["--task"]:
        role, index, cluster = sys.argv[2:]
        run_task(role, int(index), json.loads(cluster))
        os._exit(0)  # without the farewells to servers that are about to be killed
    arguments = harness.parse(__doc__)
    harness.end_in_order()
    import tensorflow as tf

    name = f"tensorflow {tf.__version__}"
    if arguments.start:
        harness.report(name, [], start_s())
        return
    tasks = addresses(ps=1, worker=1)
    results = []
    with process("ps", tasks):
        server = tf.distribute.Server(tf.train.ClusterSpec(tasks), "worker", 0)
        for case in arguments.cases:
            if case.count > MAX_VARIABLES and not arguments.named:
                reason = "left out: its set-up takes minutes; --cases many measures it"
                results.append(harness.not_measured(case, reason))
                continue
            results.append(fastest(case, server.target, tasks, arguments.budget_s, arguments.check))
    if arguments.sparse:
        tasks = addresses(ps=SPARSE.ps, worker=1)
        with ExitStack() as started:
            for number in range(SPARSE.ps):
                started.enter_context(process("ps", tasks, number))
            server = tf.distribute.Server(tf.train.ClusterSpec(tasks), "worker", 0)
            results += fastest_sparse(server.target, tasks, arguments.budget_s, arguments.check)
    harness.report(name, results, None)
    sys.stdout.flush()
    os._exit(0)  # a TensorFlow server cannot be stopped otherwise


if __name__ == "__main__":
    main()
