"""A model as a folder that others take: its variables in one file, and what model_fn writes."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...core.checkpoint import CheckpointReader, export_checkpoint
from ...core.errors import ConfigurationError

VARIABLES = "variables.safetensors"
ABOUT = "export.json"


class ServingInputReceiver:
    """Features of a few examples for an export, as ``tf.estimator.export.ServingInputReceiver``.

    Args:
        features: Features of a few examples, as model_fn takes them.
        receiver_tensors: TensorFlow's; not used.
    """

    def __init__(self, features: Any, receiver_tensors: Any = None) -> None:
        self.features = features
        self.receiver_tensors = receiver_tensors


def build_raw_serving_input_receiver_fn(features: Any) -> Callable[[], ServingInputReceiver]:
    """Make a function that returns these features, as in ``tf.estimator.export``."""
    return lambda: ServingInputReceiver(features)


def write_export(
    base: str, reader: CheckpointReader, outputs: Mapping[str, Callable[[str], Any]]
) -> str:
    """Write a new folder, whole or not at all, and return its path.

    Args:
        base: A folder of this machine; the new one is named by the time, in seconds.
        reader: Reader of the checkpoint.
        outputs: Functions by file name, each of which writes a file to the path it gets.

    Raises:
        ConfigurationError: ``base`` is no folder of this machine, or a file name is not valid.
        CheckpointError: The checkpoint is damaged.
    """
    if "://" in base:
        raise ConfigurationError(f"exports go to a folder of this machine, not to {base}")
    for name in outputs:
        if Path(name).name != name or name in (VARIABLES, ABOUT):
            raise ConfigurationError(f"export_outputs has {name!r}, which is no name for a file")
    folder = _new_folder(Path(base))
    temporary = folder.with_name(f"temp-{folder.name}")
    temporary.mkdir(parents=True)
    names = export_checkpoint(reader.path, temporary / VARIABLES)
    for name, write in outputs.items():
        write(str(temporary / name))
    about = {
        "global_step": reader.manifest.global_step,
        "checkpoint": reader.path,
        "variables": names,
        "files": sorted(outputs),
    }
    (temporary / ABOUT).write_text(json.dumps(about, indent=1))
    temporary.rename(folder)
    return str(folder)


def _new_folder(base: Path) -> Path:
    stamp = int(time.time())
    while (base / str(stamp)).exists() or (base / f"temp-{stamp}").exists():
        stamp += 1
    return base / str(stamp)


def exports_in(base: str) -> list[Path]:
    """Complete exports of a folder, the oldest first."""
    folder = Path(base)
    folders = [path for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name))
