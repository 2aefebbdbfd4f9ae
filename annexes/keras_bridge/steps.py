"""Steps of a model, on whatever framework Keras runs."""

from collections.abc import Mapping
from typing import Any, Protocol

from ...core.arrays.dtypes import Array
from ...distribute.variables.variable import Variable
from ..embedding.features.tables import Embeddings
from .distributed_embedding import DistributedEmbedding, FeatureReader
from .embedding import Embedding, RowReader


class Steps(Protocol):
    """The steps of a framework under Keras whose gradients can be taken; made of weights."""

    def array(self, variable: Any) -> Array:
        """Read a variable's value on the host; of the same memory where that is possible."""

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Give variables, by name, values that came."""

    def changed(self) -> Mapping[str, Array]:
        """Find what others than steps and :meth:`load` have made of variables, by name."""

    def sync(self) -> None:
        """Bring into the variables what a step keeps elsewhere."""

    def make_train_function(self) -> None:
        """Set ``model.train_function``, as Keras' ``make_train_function`` does."""

    def make_test_function(self) -> None:
        """Set ``model.test_function``, as Keras' ``make_test_function`` does."""

    def make_predict_function(self) -> None:
        """Set ``model.predict_function``, as Keras' ``make_predict_function`` does."""

    def new_reader(self, layer: Embedding, table: Variable) -> RowReader:
        """Make a reader of an embedding's rows, in the steps of any model that has the layer."""

    def new_feature_reader(
        self, layer: DistributedEmbedding, embeddings: Embeddings
    ) -> FeatureReader:
        """Make a reader of several features, in the steps of any model that has the layer."""

    def use_reader(self, reader: Any) -> None:
        """Give this model's steps the rows of an embedding."""
