"""What objects show of themselves, in one line and in a notebook."""

import re
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute.coordinator import ClusterCoordinator, RemoteValue


def test_strategies_show_their_place_and_their_replicas() -> None:
    seen: list[str] = []

    def train() -> None:
        seen.append(repr(rw.distribute.ParameterServerStrategy()))

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        assert repr(cluster) == "<LocalCluster ps=2 workers=1>"
        cluster.run(train)
    place = "cluster={'ps': 2, 'chief': 1, 'worker': 1} replicas=['CPU:0']>"
    assert sorted(seen) == [
        f"<ParameterServerStrategy task='chief:0' {place}",
        f"<ParameterServerStrategy task='worker:0' {place}",
    ]
    assert repr(rw.distribute.get_strategy()) == "<DefaultStrategy replicas=['CPU:0']>"


@pytest.mark.annex("ring")
def test_a_strategy_of_workers_in_sync_shows_which_of_them_it_is() -> None:
    alone = rw.distribute.MultiWorkerMirroredStrategy()
    assert repr(alone) == "<MultiWorkerMirroredStrategy worker=0 workers=1 replicas=['CPU:0']>"


def test_resolvers_show_what_takes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    resolvers = rw.distribute.cluster_resolver
    spec = rw.ClusterSpec({"worker": ["a:1"]})
    simple = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=0)
    shown = "<SimpleClusterResolver cluster={'worker': ['a:1']} task='worker:0'>"
    assert repr(simple) == shown
    assert repr(resolvers.UnionResolver(simple)) == f"<UnionClusterResolver of=[{shown}]>"
    monkeypatch.setenv("TF_CONFIG", "{")
    assert 'unknown="TF_CONFIG' in repr(resolvers.TFConfigClusterResolver())

    class Asks(resolvers.ClusterResolver):
        def cluster_spec(self) -> rw.ClusterSpec:
            raise AssertionError("a service was asked")

    assert repr(Asks()) == "<Asks>"


def test_remote_values_show_their_state_and_their_result() -> None:
    value = RemoteValue()
    assert repr(value) == "<RemoteValue status='not ready'>"
    value.settle(np.zeros((2, 2)))
    assert repr(value) == "<RemoteValue status='ready' value=array([[0., 0.], [0., 0.]])>"
    value = RemoteValue()
    value.settle({"loss": np.array(0.5), "rows": [np.zeros(1)]})
    loss, rows = value.fetch().values()
    assert isinstance(loss, np.float64), "as TensorFlow's fetch, not an array without axes"
    assert rows[0].shape == (1,)
    value = RemoteValue()
    value.abort(ZeroDivisionError("of the closure"))
    assert "status='aborted' error=ZeroDivisionError('of the closure')" in repr(value)


def test_datasets_show_how_they_are_made_without_giving_an_element() -> None:
    def never(_: Any) -> Any:
        raise AssertionError("an element was taken")

    data = rw.data.Dataset.range(10).map(never).batch(2)
    assert repr(data) == "<Dataset steps='range → mapped → batched' cardinality=5>"
    assert "cardinality='infinite'" in repr(data.repeat())
    zipped = rw.data.Dataset.zip((data, data.filter(never)))
    assert "zipped(range → mapped → batched, range →" in repr(zipped)
    strategy = rw.distribute.OneDeviceStrategy("CPU:0")
    numbers = strategy.experimental_distribute_dataset(rw.data.Dataset.range(3).batch(1))
    assert repr(numbers).startswith("<DistributedDataset replicas=1 dataset=<Dataset steps")
    iterator = iter(numbers)
    next(iterator)
    assert repr(iterator).startswith("<DistributedIterator taken=1 ")


def test_what_is_long_is_cut_and_a_notebook_has_a_table() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    arrays = {f"layer_{number}": np.zeros(3) for number in range(100)}
    store = rw.training.ArrayStore(arrays, None, strategy)
    assert "…" in repr(store)
    assert len(repr(store)) < 450
    value = RemoteValue()
    value.settle("<b>")
    html = value._repr_html_()
    assert "&lt;b&gt;" in html
    assert re.search(r"<table><caption>RemoteValue</caption><tr><th[^>]*>status</th>", html)
    assert repr(strategy) in repr(ClusterCoordinator(strategy))
    html = rw.ClusterSpec({"ps": ["a:1"], "worker": {1: "b:2"}})._repr_html_()
    assert "<caption>ClusterSpec</caption>" in html
    assert re.search(r"<th[^>]*>ps</th><td[^>]*>\[&#x27;a:1&#x27;\]</td>", html)
    assert re.search(r"<th[^>]*>worker</th><td[^>]*>{1: &#x27;b:2&#x27;}</td>", html)


def test_an_object_whose_constructor_has_raised_can_be_shown() -> None:
    half = rw.distribute.MirroredStrategy.__new__(rw.distribute.MirroredStrategy)
    assert repr(half) == "<MirroredStrategy>"
