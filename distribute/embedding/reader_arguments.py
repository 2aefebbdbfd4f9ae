"""Arguments of a reader: its chief, its tables, and which rows it keeps; checked."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ...cluster.resolvers.tf_config import TFConfigClusterResolver
from ...cluster.roles import canonical_spec, chief_of
from ...core.arrays.dtypes import Array, as_dtype
from ...core.errors import ConfigurationError
from ...core.rules.definitions import VariableDefinition
from .config import TableConfig
from .followed_tables import ranges_of

LookedUp = Literal["looked_up"]
Keys = LookedUp | Sequence[tuple[int, int]] | Array
"""Choice of rows of a table that are kept: those that lookups bring, ranges of keys, or an array of
keys.
"""


def chief_of_cluster() -> str:
    """Find the address of the chief in the cluster of TF_CONFIG.

    Raises:
        ConfigurationError: There is none.
    """
    spec = canonical_spec(TFConfigClusterResolver().cluster_spec())
    if not spec:
        raise ConfigurationError(
            "a Reader needs the address of the job's chief, as its first argument or in the "
            "cluster of TF_CONFIG"
        )
    chief = chief_of(spec)
    return spec.task_address(chief.type, chief.index)


def checked_keys(
    keys: Mapping[str, Keys], tables: Mapping[str, TableConfig]
) -> dict[str, tuple[tuple[int, int], ...] | Array | None]:
    """Check the choice of rows that are kept, by name of the table; None: those that lookups bring.

    Raises:
        ConfigurationError: There is no such table, or that is no choice of keys.
        ValueError: A range is none.
    """
    if unknown := keys.keys() - tables.keys():
        raise ConfigurationError(
            f"keys of {min(unknown)!r}, and no feature has such a table; those are "
            f"{', '.join(tables)}"
        )
    checked: dict[str, tuple[tuple[int, int], ...] | Array | None] = {}
    for name, which in keys.items():
        if isinstance(which, str):
            if which != "looked_up":
                raise ConfigurationError(
                    f'keys of table {name!r} are {which!r}; write "looked_up", ranges, or an array'
                )
            checked[name] = None
        elif isinstance(which, np.ndarray):
            if which.dtype.kind not in "iu" or not which.size:
                raise ConfigurationError(
                    f"keys of table {name!r} are {which.dtype}{list(which.shape)}; give integers, "
                    "one at least"
                )
            checked[name] = np.ascontiguousarray(which).reshape(-1).astype(np.int64)
        else:
            checked[name] = ranges_of(name, which)
    return checked


def check_table(config: TableConfig, definition: VariableDefinition) -> None:
    """Check that a table of the job is the one that a feature names.

    Raises:
        ConfigurationError: It is another one.
    """
    grows = definition.table is not None
    dim = definition.shape[1:]
    theirs = f"{definition.dtype.name}{list(dim)}, {'growing' if grows else definition.shape[:1]}"
    rows = None if grows else definition.shape[0] if definition.shape else 0
    if (rows, dim, definition.dtype) != (
        config.vocabulary_size, (config.dim,), as_dtype(config.dtype),
    ):  # fmt: skip
        raise ConfigurationError(
            f"table {config.name!r} is {theirs} in the job; the reader's TableConfig has "
            f"dim={config.dim}, dtype={as_dtype(config.dtype).name} and "
            f"vocabulary_size={config.vocabulary_size}. Write it as the training program does",
            table=config.name,
        )
