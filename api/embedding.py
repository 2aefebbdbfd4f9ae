"""``ropewalk.embedding``: embedding tables, growing or not, of several features together."""

from typing import TYPE_CHECKING

from ..core.public_face import public_getattr
from ..core.rules.tables import Chance, Sightings, SketchedSightings
from ..distribute.embedding.config import FeatureConfig, TableConfig
from ..distribute.embedding.inputs import Ragged
from ..distribute.embedding.optimizers import GroupFtrl, RowwiseAdagrad
from ..distribute.embedding.string_keys import hash_strings
from ..distribute.embedding.tables import Embeddings, Lookup

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
    from ..distribute.embedding.reader import Reader, RowsAtOneMoment
    from ..training.tables.export import export_table
    from ..training.tables.importing import import_tables
else:
    __getattr__ = public_getattr(
        "ropewalk.embedding",
        globals(),
        later={
            "Reader": "distribute.embedding.reader:Reader",
            "RowsAtOneMoment": "distribute.embedding.reader:RowsAtOneMoment",
            "export_table": "training.tables.export:export_table",
            "import_tables": "training.tables.importing:import_tables",
        },
    )
