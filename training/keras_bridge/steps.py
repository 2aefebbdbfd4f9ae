"""What makes the steps of a model, on whatever framework Keras runs."""

from collections.abc import Mapping
from typing import Any, Protocol

from ...core.arrays.dtypes import Array
from ...distribute.embedding.tables import Embeddings
from ...distribute.variables.variable import Variable
from .distributed_embedding import DistributedEmbedding, FeatureReader
from .embedding import Embedding, RowReader


class Steps(Protocol):
    """How a framework under Keras makes steps whose gradients can be taken; made of weights."""

    def array(self, variable: Any) -> Array:
        """A variable's value on the host; of the same memory where that is possible."""

    def load(self, names: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Give variables, by name, values that came."""

    def changed(self) -> Mapping[str, Array]:
        """What others than steps and :meth:`load` have made of variables, by name."""

    def sync(self) -> None:
        """Bring into the variables what a step keeps elsewhere."""

    def make_train_function(self) -> None:
        """As Keras' ``make_train_function``: sets ``model.train_function``."""

    def make_test_function(self) -> None:
        """As Keras' ``make_test_function``."""

    def make_predict_function(self) -> None:
        """As Keras' ``make_predict_function``."""

    def new_reader(self, layer: Embedding, table: Variable) -> RowReader:
        """Reader of an embedding's rows, in the steps of any model that has the layer."""

    def new_feature_reader(
        self, layer: DistributedEmbedding, embeddings: Embeddings
    ) -> FeatureReader:
        """Reader of several features, in the steps of any model that has the layer."""

    def use_reader(self, reader: Any) -> None:
        """Give this model's steps the rows of an embedding."""
