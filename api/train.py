"""``ropewalk.train``: checkpoints of a program's objects, as ``tf.train`` has them.

::

    checkpoint = rw.train.Checkpoint(model=model, optimizer=optimizer)
    manager = rw.train.CheckpointManager(checkpoint, "runs/model", max_to_keep=3)
    manager.restore_or_initialize()
    ...
    manager.save()
"""

from typing import TYPE_CHECKING

from ..cluster.spec import ClusterSpec
from ..core.checkpoint import CheckpointReader, export_checkpoint
from ..core.public_face import public_getattr
from ..distribute.checkpoint_manager import CheckpointManager
from ..distribute.object_checkpoint import ObjectCheckpoint as Checkpoint
from ..distribute.reading import latest_checkpoint, list_variables, load_checkpoint, load_variable

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointReader",
    "ClusterSpec",
    "export_checkpoint",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]

if TYPE_CHECKING:
    from ..worker.standard_server import Server

    __all__ += ["Server"]
else:
    # As TensorFlow 1 calls it.
    __getattr__ = public_getattr(
        "ropewalk.train", globals(), later={"Server": "worker.standard_server:Server"}
    )
