"""Configuration of tables and features: names as in ``tf.tpu.experimental.embedding`` and
keras-rs.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ....core.arrays.dtypes import FLOATS, DType, as_dtype
from ....core.arrays.scaled_rows import INT8
from ....core.errors import ConfigurationError
from ....core.rules.definitions import VariableDefinition
from ....core.rules.initializers import Initializer
from ....distribute.embeddings import COMBINERS
from ....distribute.optimizer import Optimizer, Rate
from ..options import Admission, NormClipping, Order, TableOptions
from ..update_rules import GroupFtrl as GroupFtrlRule
from ..update_rules import RowwiseAdagrad as RowwiseAdagradRule

DEFAULT_MAX_ROWS = 1 << 20
DEFAULT_CACHE_BYTES = 64 << 20
_WIRE_DTYPES = '"int8", "bfloat16", "float16" or "float32", and narrower than dtype'


@dataclass(frozen=True, eq=False)
class TableConfig:
    """An embedding table, which several features may share.

    With ``vocabulary_size`` it has that many rows, numbered from 0: a variable. Without one it
    grows: any int64 is a key, and a key gets its row when it is first trained. What a row begins
    with depends on the initializer's seed, the table's name and the key alone.

    Args:
        name: Name of the table, unique in the job.
        dim: Number of elements of a row.
        vocabulary_size: Number of rows; None: the table grows.
        initializer: Initializer of the rows, or its name; None: a normal distribution of deviation
            ``1 / sqrt(dim)``, cut at two deviations, as in ``tf.tpu.experimental.embedding``. Of a
            growing table zeros, ones, constant, random_normal, random_uniform or truncated_normal.
        optimizer: Optimizer of the rows; None: that of ``Embeddings``. A growing table keeps it as
            it is now: its rate may follow a schedule, and is not assigned later.
        combiner: ``"mean"``, ``"sum"`` or ``"sqrtn"``: how rows of one example become one.
        dtype: float32 or float64; with a vocabulary_size any dtype of floating-point numbers.
        max_rows: Maximal number of rows of a growing table, over all ps; None: as ``max_bytes``
            says, or 1,048,576. Each ps has an equal part of them.
        max_bytes: Limit of a growing table in bytes of rows, slots and index over all ps, and of
            what admission remembers on one. Unit: bytes.
        memory_bytes: Memory of a growing table over all ps, with slots and index: the rows beyond
            it that were not used for longest are on the disks of the ps, which need a
            ``table_folder``. None: all rows are in memory. Unit: bytes.
        admission: Condition on which a key of a growing table gets a row: :class:`Sightings`,
            :class:`SketchedSightings` or :class:`Chance`; None: all get one.
        evicts: Order in which rows make room when a growing table is full: ``"least_recent"``,
            ``"least_frequent"``; None: none, and new keys get no row.
        max_unseen_steps: A row of a growing table goes so many steps after its last push; None:
            it stays. Unit: steps.
        unknown: Value that is read for a key without a row: ``"initial"``, the value its row would
            begin with, or ``"zeros"``.
        row_norm: Largest norm of a row's gradient, of a growing table; None: any.
        table_norm: Largest norm of a push's gradient, of a growing table; None: any.
        staleness_reads: A row may be read from this worker's memory by so many lookups after the
            one that has pulled it; 0: every lookup pulls all of its rows. Of a growing table this
            worker's own gradients change it meanwhile, and it is pulled earlier if other workers
            may have made more than a tenth of its updates since. Unit: lookups.
        staleness_writes: Gradients of a growing table wait for so many of this worker's steps, and
            then travel as one, added up; 0: with each step. Unit: steps.
        cache_bytes: Most memory on each worker of the rows that are kept for that, with slots, and
            as much again of gradients that wait. Unit: bytes.
        wire_dtype: bfloat16, float16, float32, or int8 with a scale for each row: rows travel so
            between a worker and a ps of another machine, and so do their gradients, rounded at
            random; values on the ps keep ``dtype``. None: as they are.

    Raises:
        ConfigurationError: Arguments that do not fit together.
    """

    name: str
    dim: int
    vocabulary_size: int | None = None
    initializer: Initializer | str | None = None
    optimizer: Optimizer | None = None
    combiner: str = "mean"
    dtype: Any = np.float32
    max_rows: int | None = None
    max_bytes: int | None = None
    memory_bytes: int | None = None
    admission: Admission | None = None
    evicts: Order | None = "least_recent"
    max_unseen_steps: int | None = None
    unknown: Literal["initial", "zeros"] = "initial"
    row_norm: float | None = None
    table_norm: float | None = None
    staleness_reads: int = 0
    staleness_writes: int = 0
    cache_bytes: int = DEFAULT_CACHE_BYTES
    wire_dtype: Any = None

    def __post_init__(self) -> None:
        self._check("name", isinstance(self.name, str), "a str")
        for name, least in _LEAST.items():
            self._check(name, _is_whole(getattr(self, name), least), f"an int, at least {least}")
        for name in ("vocabulary_size", "max_rows", "max_bytes", "memory_bytes"):
            value = getattr(self, name)
            self._check(name, value is None or _is_whole(value, 1), "an int, at least 1, or None")
        self._check("combiner", self.combiner in COMBINERS, f"one of {', '.join(COMBINERS)}")
        is_known = isinstance(self.initializer, Initializer | str | None)
        self._check("initializer", is_known, "a rw.Initializer, the name of one, or None")
        is_known = isinstance(self.admission, Admission | None)
        self._check("admission", is_known, "Sightings, SketchedSightings, Chance or None")
        self._check("unknown", self.unknown in ("initial", "zeros"), '"initial" or "zeros"')
        if self.wire_dtype is not None:
            self._check("wire_dtype", self.narrow_dtype is not None, _WIRE_DTYPES)
        orders = (None, "least_recent", "least_frequent")
        self._check("evicts", self.evicts in orders, '"least_recent", "least_frequent" or None')
        if self.max_rows is not None and self.max_bytes is not None:
            raise self._error("has max_rows and max_bytes; write one of them")
        for name in _GROWING_ALONE if self.vocabulary_size is not None else ():
            if getattr(self, name) != getattr(TableConfig, name):  # the default
                raise self._error(
                    f"has a vocabulary_size and {name}, which is for tables that grow; leave one "
                    "of them out"
                )
        for name in ("row_norm", "table_norm"):
            value = getattr(self, name)
            is_norm = value is None or 0 < value < math.inf
            self._check(name, is_norm, "positive and finite, or None")

    @property
    def narrow_dtype(self) -> DType | None:
        """The dtype in which rows travel; None: their own, or ``wire_dtype`` is none for them."""
        try:
            wire, own = as_dtype(self.wire_dtype), as_dtype(self.dtype)
        except (TypeError, ValueError):
            return None
        return wire if wire in (*FLOATS, INT8) and wire.itemsize < own.itemsize else None

    def _check(self, name: str, is_usable: bool, expected: str) -> None:
        if not is_usable:
            raise self._error(f"has {name}={getattr(self, name)!r}; it must be {expected}")

    def _error(self, what: str) -> ConfigurationError:
        return ConfigurationError(f"table {self.name!r} {what}", table=self.name)

    @property
    def first_values(self) -> Initializer:
        """The initializer, or the one that stands for None."""
        if isinstance(self.initializer, str):
            return Initializer(self.initializer)
        if self.initializer is not None:
            return self.initializer
        return Initializer("truncated_normal", stddev=self.dim**-0.5)

    def definition(self, optimizer: Optimizer | None) -> VariableDefinition:
        """Define a growing table.

        Args:
            optimizer: The one to take if the table has none.

        Raises:
            ConfigurationError: There is no optimizer, or it has what tables do not do.
        """
        dtype: DType = as_dtype(self.dtype)
        options = TableOptions(
            rule=self.own_optimizer(optimizer).rule,
            unknown=self.unknown,
            admission=self.admission,
            max_unseen_steps=self.max_unseen_steps,
            evicts=self.evicts,
            clipping=NormClipping(self.row_norm, self.table_norm),
            memory_bytes=self.memory_bytes,
        )
        rows = self.max_rows or DEFAULT_MAX_ROWS
        if self.max_bytes is not None:
            rows = options.rows_within(self.max_bytes, self.dim, dtype)
            least = options.num_bytes(1, self.dim, dtype)
            self._check("max_bytes", rows >= 1, f"at least {least}: {_ONE_ROW}")
        shape = (rows, self.dim)
        return VariableDefinition(self.name, shape, dtype, self.first_values, table=options)

    def own_optimizer(self, optimizer: Optimizer | None) -> Optimizer:
        """Choose the table's optimizer, or the one that all tables have.

        Raises:
            ConfigurationError: There is none, or this table cannot have it.
        """
        own = self.optimizer or optimizer
        if own is None:
            raise self._error("has no optimizer; give it one, or one to Embeddings")
        if not isinstance(own, Optimizer):
            raise self._error(f"has the optimizer {own!r}; write one of rw.optimizers")
        rule = own.rule
        if self.vocabulary_size is not None:
            if rule.needs_rows:
                raise self._error(
                    f"has a vocabulary_size and the optimizer {rule.name}, which runs on growing "
                    "tables alone; give it another one, or leave vocabulary_size out"
                )
            return own
        if rule.clipnorm is not None or rule.global_clipnorm is not None:
            raise self._error("grows and clips by row_norm and table_norm, not by its optimizer")
        if own.hyperparameters(lambda: 0) is not None:
            raise self._error(
                "grows and keeps its optimizer as it was constructed; construct one with the "
                "values it is to have, and with a schedule for a rate that changes"
            )
        return own


_LEAST = {"dim": 1, "staleness_reads": 0, "staleness_writes": 0, "cache_bytes": 1}
_ONE_ROW = (
    "so much takes one row with its slots and index, and what the admission remembers, which "
    "max_candidates or counters make smaller"
)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and value is not True and bool(value >= least)


_GROWING_ALONE = (
    "max_rows", "max_bytes", "memory_bytes", "admission", "max_unseen_steps", "row_norm",
    "table_norm", "staleness_writes",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class FeatureConfig:
    """A feature: ids that are looked up in a table.

    Args:
        name: Name of the feature, as in what is looked up.
        table: Table of the feature; features that name the same one share its rows.
        max_sequence_length: 0: rows of an example become one, by the table's combiner. Else they
            stay: the first so many of each example, in order, and zeros after them.
    """

    name: str
    table: TableConfig
    max_sequence_length: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise ConfigurationError(
                f"feature {self.name!r} has the table {self.table!r}; write a TableConfig"
            )
        if not _is_whole(self.max_sequence_length, 0):
            raise ConfigurationError(
                f"feature {self.name!r} has max_sequence_length={self.max_sequence_length!r}; it "
                "must be an int, at least 1, or 0 for rows that are combined"
            )


class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator per row, as TorchRec's ``EXACT_ROWWISE_ADAGRAD``.

    See :class:`~ropewalk.annexes.embedding.update_rules.RowwiseAdagrad`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        *,
        clipvalue: float | None = None,
    ) -> None:
        self._begin(RowwiseAdagradRule, locals())


class GroupFtrl(Optimizer):
    """FTRL with a group lasso over each row, which makes whole rows zero.

    See :class:`~ropewalk.annexes.embedding.update_rules.GroupFtrl`.
    """

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        group_regularization_strength: float = 0.0,
        beta: float = 0.0,
        *,
        clipvalue: float | None = None,
    ) -> None:
        self._begin(GroupFtrlRule, locals())
