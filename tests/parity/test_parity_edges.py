"""Arguments that are wrong, at the edge, or of an unusual kind: the same result or error."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from helpers.parity import TWO, Side, alike, differ, distributed, outcomes

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]


def mirrored(side: Side) -> Any:
    return side.strategy("Mirrored", 2)


# -- strategies and contexts -------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [[], 3, "x"], ids=repr)
@alike(gives="TypeError")
def test_keyword_arguments_are_a_mapping(side: Side, kwargs: Any) -> Any:
    return mirrored(side).run(lambda: None, kwargs=kwargs)


@pytest.mark.parametrize("method", ["reduce", "gather", "reduce_to", "batch_reduce_to"])
@alike(gives="RuntimeError")
def test_a_method_is_not_called_in_the_scope_of_another_strategy(side: Side, method: str) -> Any:
    mine, other = mirrored(side), mirrored(side)
    value = distributed(side, mine, [1.0], [2.0])
    op = side.distribute.ReduceOp.SUM
    calls: dict[str, Callable[[], Any]] = {
        "reduce": lambda: mine.reduce("SUM", value, axis=None),
        "gather": lambda: mine.gather(value, axis=0),
        "reduce_to": lambda: mine.extended.reduce_to(op, value, "/cpu:0"),
        "batch_reduce_to": lambda: mine.extended.batch_reduce_to(op, [(value, "/cpu:0")]),
    }
    with other.scope():
        return calls[method]()


@pytest.mark.parametrize("what", [3, "strategy"], ids=repr)
@alike(gives="AttributeError")
def test_only_a_strategy_is_made_current(side: Side, what: Any) -> Any:
    return side.distribute.experimental_set_strategy(what)


@alike(gives=[True, False])
def test_a_strategy_is_made_current_in_one_thread(side: Side) -> Any:
    found = []
    side.distribute.experimental_set_strategy(mirrored(side))
    try:
        found.append(side.distribute.has_strategy())
        with ThreadPoolExecutor() as pool:
            found.append(pool.submit(side.distribute.has_strategy).result())
    finally:
        side.distribute.experimental_set_strategy(None)
    return found


@alike(gives=[True, 1, False, True])
def test_a_replica_context_that_a_program_makes_is_entered_with_with(side: Side) -> Any:
    strategy = mirrored(side)
    with side.distribute.ReplicaContext(strategy, 1) as nothing:
        context = side.distribute.get_replica_context()
        return [
            side.distribute.get_strategy() is strategy,
            context.replica_id_in_sync_group,
            side.distribute.in_cross_replica_context(),
            nothing is None,
        ]


@alike(gives="RuntimeError")
def test_devices_are_those_of_the_current_context(side: Side) -> Any:
    return side.distribute.ReplicaContext(mirrored(side), 1).devices


@alike(gives="tf.distribute.ValueContext(replica id 1,  total replicas in sync: 2)")
def test_a_value_context_shows_the_same(side: Side) -> Any:
    return str(side.distribute.experimental.ValueContext(1, 2))


@pytest.mark.parametrize("device", [["/cpu:0"], {}], ids=repr)
@alike(gives="TypeError")
def test_a_device_is_named_by_text(side: Side, device: Any) -> Any:
    return side.distribute.OneDeviceStrategy(device)


# -- reductions --------------------------------------------------------------------------------


@alike(gives=["ValueError", "TypeError"])
def test_booleans_have_no_sum(side: Side) -> Any:
    strategy = mirrored(side)
    value = distributed(side, strategy, [True], [False], dtype="bool")
    return outcomes(
        side,
        lambda: strategy.reduce("SUM", value, axis=None),
        lambda: strategy.reduce("SUM", value, axis=0),
    )


@differ(theirs="ValueError", ours=[0.5])
def test_the_mean_of_booleans_is_the_share_that_is_true(side: Side) -> Any:
    """TensorFlow adds no booleans up."""
    strategy = mirrored(side)
    value = distributed(side, strategy, [True], [False], dtype="bool")
    return strategy.reduce("MEAN", value, axis=None)


@alike(gives="ValueError")
def test_a_replica_does_not_add_booleans_up(side: Side) -> Any:
    context = side.distribute.get_replica_context
    return mirrored(side).run(lambda: context().all_reduce("SUM", side.array([True], "bool")))


@pytest.mark.parametrize("axis", [None, 0], ids=repr)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "float16"])
@alike()
def test_means_have_the_same_dtype(side: Side, dtype: str, axis: int | None) -> Any:
    strategy = mirrored(side)
    value = distributed(side, strategy, [1, 2], [3, 4], dtype=dtype)
    mean = np.asarray(strategy.reduce("MEAN", value, axis=axis))
    return [mean.dtype.name, mean]


@pytest.mark.parametrize("axis", [None, 0], ids=repr)
@alike()
def test_means_of_complex_numbers_keep_the_imaginary_part(side: Side, axis: int | None) -> Any:
    strategy = mirrored(side)
    value = distributed(side, strategy, [1 + 2j, 2 + 0j], [3 + 0j, 4j], dtype="complex64")
    return strategy.reduce("MEAN", value, axis=axis)


@alike(gives=["ValueError", None, []])
def test_none_has_no_sum(side: Side) -> Any:
    strategy = mirrored(side)
    return outcomes(
        side,
        lambda: strategy.reduce("SUM", None, axis=None),
        lambda: strategy.reduce("MEAN", None, axis=None),
        lambda: strategy.reduce("SUM", [], axis=None),
    )


# -- variables ---------------------------------------------------------------------------------


@alike(gives=["ON_WRITE", "AUTO", "AUTO", "AUTO"])
def test_a_mirrored_variable_is_made_equal_on_write(side: Side) -> Any:
    found = []
    for kind in ("Mirrored", "OneDevice", "CentralStorage", "default"):
        with side.strategy(kind, 2).scope():
            found.append(side.variable([1.0]).synchronization.name)
    return found


@pytest.mark.parametrize("argument", ["aggregation", "synchronization"])
@alike(gives="ValueError")
def test_how_copies_are_kept_equal_is_not_said_by_text(side: Side, argument: str) -> Any:
    with mirrored(side).scope():
        return side.root.Variable(1.0, **{argument: "SUM"})


@alike(gives=["NONE", "NONE"])
def test_none_is_no_aggregation(side: Side) -> Any:
    plain = side.root.Variable(1.0, aggregation=None)
    with mirrored(side).scope():
        return [v.aggregation.name for v in (plain, side.root.Variable(1.0, aggregation=None))]


@alike(gives="TypeError")
def test_a_dtype_of_integers_does_not_cut_fractions_off(side: Side) -> Any:
    return side.variable(1.5, dtype="int32")


# -- datasets ----------------------------------------------------------------------------------

WRONG: dict[str, Callable[[Any], Any]] = {
    "take": lambda data: data.take("a"),
    "take-float": lambda data: data.take(2.5),
    "skip": lambda data: data.skip("a"),
    "repeat": lambda data: data.repeat("a"),
    "batch": lambda data: data.batch("a"),
    "batch-float": lambda data: data.batch(2.5),
    "shuffle": lambda data: data.shuffle("a"),
    "prefetch": lambda data: data.prefetch("a"),
    "enumerate": lambda data: data.enumerate("a"),
    "shards": lambda data: data.shard("a", 0),
    "shard": lambda data: data.shard(2, "a"),
}


@pytest.mark.parametrize("name", WRONG)
@alike(gives="TypeError")
def test_text_and_fractions_are_no_counts(side: Side, name: str) -> Any:
    return WRONG[name](side.root.data.Dataset.range(3)) and None


@pytest.mark.parametrize("method", ["map", "filter"])
@alike(gives="ValueError")
def test_elements_are_given_to_a_function(side: Side, method: str) -> Any:
    return getattr(side.root.data.Dataset.range(3), method)(3) and None


# -- partitioners ------------------------------------------------------------------------------

TEXT: dict[str, Callable[[Any], Any]] = {
    "min-bytes": lambda names: names.MinSizePartitioner("a"),
    "min-shards": lambda names: names.MinSizePartitioner(1, "a"),
    "min-string": lambda names: names.MinSizePartitioner(bytes_per_string="a"),
    "max-bytes": lambda names: names.MaxSizePartitioner("a"),
    "max-shards": lambda names: names.MaxSizePartitioner(1, "a"),
    "max-string": lambda names: names.MaxSizePartitioner(1, bytes_per_string="a"),
}


@pytest.mark.parametrize("name", TEXT)
@alike(gives="TypeError")
def test_partitioners_take_numbers(side: Side, name: str) -> Any:
    return TEXT[name](side.distribute.experimental.partitioners) and None


@differ(theirs="value", ours="TypeError", words="`num_shards` must be a number, got 'a'")
def test_a_number_of_shards_is_looked_at_at_once(side: Side) -> Any:
    """TensorFlow looks at it when it cuts the first variable."""
    return side.distribute.experimental.partitioners.FixedShardsPartitioner("a") and None


# -- clusters ----------------------------------------------------------------------------------


@alike(gives="ClusterSpec({'ps': ['c:3'], 'worker': ['a:1', 'b:2']})")
def test_a_cluster_spec_shows_its_jobs_by_name(side: Side) -> Any:
    return repr(side.cluster_spec(TWO))


@alike(gives=["", "w:1", ""])
def test_one_task_of_a_sparse_job_is_not_alone(side: Side, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = []
    for tasks, index in ((["w:0"], 0), ({"1": "w:1"}, 1), ({"0": "w:0"}, 0)):
        task = {"type": "worker", "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": tasks}, "task": task}))
        found.append(side.distribute.cluster_resolver.TFConfigClusterResolver().master())
    return found


# -- devices -----------------------------------------------------------------------------------

TASK = "/job:localhost/replica:0/task:0"


@pytest.mark.parametrize(
    "device", ["/cpu:1", "/device:CPU:2", "CPU:3", f"{TASK}/device:CPU:1", None, "", "/cpu:77"]
)
@alike()
def test_a_variable_of_no_strategy_is_where_the_program_says(side: Side, device: Any) -> Any:
    with side.root.device(device):
        variable = side.root.Variable([1.0, 2.0])
    variable.assign_add([1.0, 1.0])
    return [variable.device, variable.read_value()]


@alike(gives=[f"{TASK}/device:CPU:{number}" for number in (2, 1, 0, 0)])
def test_contexts_of_devices_nest(side: Side) -> Any:
    with side.root.device("/cpu:1"):
        with side.root.device("/cpu:2"):
            first = side.root.Variable(1.0)
        second = side.root.Variable(1.0)
        with side.root.device(None):
            third = side.root.Variable(1.0)
    return [each.device for each in (first, second, third, side.root.Variable(1.0))]


@pytest.mark.parametrize("kind", ["Mirrored", "OneDevice"])
@alike()
def test_strategies_put_variables_where_their_replicas_are(side: Side, kind: str) -> Any:
    strategy = side.strategy(kind, 2)
    with strategy.scope(), side.root.device("/cpu:1"):
        variable = side.root.Variable(1.0)
    return [each.device for each in getattr(variable, "values", [variable])]


@pytest.mark.parametrize("device", [None, "", "/cpu:1"], ids=repr)
@alike()
def test_one_device_may_be_the_default_one(side: Side, device: Any) -> Any:
    strategy = side.distribute.OneDeviceStrategy(device)
    with strategy.scope():
        variable = side.root.Variable(1.0)
    return [variable.device, strategy.run(lambda: side.array([1.0]))]


@differ(theirs=1, ours=4)
def test_central_storage_computes_on_every_cpu_device_by_default(side: Side) -> Any:
    """Logical devices are made to try several replicas, as MirroredStrategy takes them, too."""
    return side.distribute.experimental.CentralStorageStrategy().num_replicas_in_sync


# -- arguments that are of another kind --------------------------------------------------------


@pytest.mark.parametrize("axis", [None, "a", 0.5], ids=repr)
@pytest.mark.parametrize("where", ["gather", "all_gather"])
@alike()
def test_values_are_gathered_along_an_integer(side: Side, where: str, axis: Any) -> Any:
    strategy = mirrored(side)
    if where == "gather":
        return strategy.gather(distributed(side, strategy, [1.0], [2.0]), axis=axis)
    context = side.distribute.get_replica_context
    return strategy.run(lambda: context().all_gather(side.array([1.0]), axis=axis))


@pytest.mark.parametrize("destinations", [None, ["/cpu:0", "/cpu:1"], 1j], ids=repr)
@pytest.mark.parametrize("call", ["reduce", "broadcast"])
@alike(gives="ValueError")
def test_destinations_are_devices_or_values(side: Side, call: str, destinations: Any) -> Any:
    ops = side.distribute.ReductionToOneDevice()
    if call == "broadcast":
        return ops.broadcast(side.array(1.0), destinations)
    value = distributed(side, mirrored(side), [1.0], [2.0])
    return ops.reduce(side.distribute.ReduceOp.SUM, value, destinations)


@pytest.mark.parametrize("value", [None, [None, None], [[1.0], [1.0, 2.0]]], ids=repr)
@alike(gives="ValueError")
def test_a_variable_is_assigned_numbers(side: Side, value: Any) -> Any:
    side.root.Variable([1.0, 2.0]).assign(value)
