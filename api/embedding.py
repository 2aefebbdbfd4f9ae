"""``ropewalk.embedding``: embedding tables, growing or not, of several features together."""

from typing import TYPE_CHECKING

from ..annexes.embedding.features.config import (
    FeatureConfig,
    GroupFtrl,
    RowwiseAdagrad,
    TableConfig,
)
from ..annexes.embedding.features.inputs import Ragged, hash_strings
from ..annexes.embedding.features.tables import Embeddings, Lookup
from ..annexes.embedding.options import Chance, Sightings, SketchedSightings
from ..core.public_face import public_getattr

__all__ = [
    "Chance",
    "Embeddings",
    "FeatureConfig",
    "GroupFtrl",
    "Lookup",
    "Ragged",
    "Reader",
    "RowsAtOneMoment",
    "RowwiseAdagrad",
    "Sightings",
    "SketchedSightings",
    "TableConfig",
    "export_table",
    "hash_strings",
    "import_tables",
]

if TYPE_CHECKING:
    from ..annexes.embedding.files.exchange import export_table, import_tables
    from ..annexes.embedding.readers.reader import Reader, RowsAtOneMoment
else:
    __getattr__ = public_getattr(
        "ropewalk.embedding",
        globals(),
        later={
            "Reader": "annexes.embedding.readers.reader:Reader",
            "RowsAtOneMoment": "annexes.embedding.readers.reader:RowsAtOneMoment",
            "export_table": "annexes.embedding.files.exchange:export_table",
            "import_tables": "annexes.embedding.files.exchange:import_tables",
        },
    )
