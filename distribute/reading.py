"""Reading checkpoints without the program that wrote them, as ``tf.train``'s functions do.

Of a job or of a program, under any strategy: none of these needs a strategy or a cluster.
"""

from ..core.arrays.dtypes import Array, DType, as_dtype
from ..core.checkpoint import CheckpointReader, numbered_checkpoints


class TensorReader(CheckpointReader):
    """A checkpoint with the methods of the reader that ``tf.train.load_checkpoint`` returns."""

    def has_tensor(self, tensor_str: str) -> bool:
        """Return whether there is a variable of this name."""
        return self.variable(tensor_str) is not None

    def get_tensor(self, tensor_str: str) -> Array:
        """Read a variable's value.

        Raises:
            CheckpointError: There is none of this name, or it is damaged.
        """
        return self.read(tensor_str)

    def get_variable_to_shape_map(self) -> dict[str, tuple[int, ...]]:
        """List the shape of each variable, by name."""
        return {name: tuple(record.shape) for name, record in self.manifest.variables.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """List the dtype of each variable, by name."""
        return {name: as_dtype(record.dtype) for name, record in self.manifest.variables.items()}


def latest_checkpoint(checkpoint_dir: str) -> str | None:
    """Find the path of the complete checkpoint with the highest number in a directory; None: there
    is none.

    It works on a job's model directory, too.
    """
    checkpoints = numbered_checkpoints(checkpoint_dir)
    return checkpoints[-1].path if checkpoints else None


def load_checkpoint(ckpt_dir_or_file: str) -> TensorReader:
    """Open a reader of one checkpoint, as ``tf.train.load_checkpoint``. As
    ``tf.train.load_checkpoint``.

    Args:
        ckpt_dir_or_file: Path or fsspec URL of a checkpoint, or of a directory: its newest one.

    Raises:
        CheckpointError: There is none, or it is not one of ours.
    """
    return TensorReader(latest_checkpoint(ckpt_dir_or_file) or ckpt_dir_or_file)


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, tuple[int, ...]]]:
    """List names and shapes of a checkpoint's variables, by name, as ``tf.train.list_variables``.
    As ``tf.train.list_variables``.

    Args:
        ckpt_dir_or_file: Path of a checkpoint or directory, as for :func:`load_checkpoint`.

    Raises:
        CheckpointError: There is none, or it is not one of ours.
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str, name: str) -> Array:
    """Load a variable of a checkpoint, verified, as ``tf.train.load_variable``. As
    ``tf.train.load_variable``.

    Args:
        ckpt_dir_or_file: Path of a checkpoint or directory, as for :func:`load_checkpoint`.
        name: Name of the variable, as in :func:`list_variables`.

    Returns:
        Array of the variable's shape and dtype.

    Raises:
        CheckpointError: There is no such checkpoint or variable, or it is damaged.
    """
    return load_checkpoint(ckpt_dir_or_file).read(name)
