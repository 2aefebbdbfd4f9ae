"""``ropewalk.embedding``: embedding tables, growing or not, of several features together."""

from typing import TYPE_CHECKING

from ..annexes.embedding.features.config import FeatureConfig, TableConfig
from ..annexes.embedding.features.inputs import Ragged, hash_strings
from ..annexes.embedding.features.optimizers import GroupFtrl, RowwiseAdagrad
from ..annexes.embedding.features.tables import Embeddings, Lookup
from ..core.public_face import public_getattr
from ..core.rules.tables import Chance, Sightings, SketchedSightings

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
    from ..annexes.embedding.files.export import export_table
    from ..annexes.embedding.files.importing import import_tables
    from ..annexes.embedding.readers.reader import Reader, RowsAtOneMoment
else:
    __getattr__ = public_getattr(
        "ropewalk.embedding",
        globals(),
        later={
            "Reader": "annexes.embedding.readers.reader:Reader",
            "RowsAtOneMoment": "annexes.embedding.readers.reader:RowsAtOneMoment",
            "export_table": "annexes.embedding.files.export:export_table",
            "import_tables": "annexes.embedding.files.importing:import_tables",
        },
    )
