"""Exporters: which evaluated checkpoints are exported. As TensorFlow's of these names."""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.checkpoint import CheckpointReader, export_checkpoint
from ...core.errors import ConfigurationError
from ...core.files.temporary import remove_tree
from ...core.outside_text import read_json, read_plain

if TYPE_CHECKING:
    from .estimator import Estimator

log = logging.getLogger(__name__)

# -- A model as a folder that others take: its variables in one file, and what model_fn writes --

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


_BEST = "best.json"
_MOST_BYTES = 16 * 1024 * 1024

CompareFn = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]


class Exporter:
    """Derive from this for one of your own.

    Attributes:
        name: Name of the exporter, whose exports go to ``model_dir/export/<name>``.
    """

    name: str

    def export(
        self,
        estimator: "Estimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> str | None:
        """Export, or do not; the folder's path, None: nothing was exported."""
        raise NotImplementedError(
            f"{type(self).__name__}.export({estimator}, {export_path}, {checkpoint_path}, "
            f"{eval_result}, {is_the_final_export})"
        )


class _Exporter(Exporter):
    def __init__(
        self, name: str, serving_input_receiver_fn: Any = None, exports_to_keep: int | None = 5
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigurationError(f"an exporter is named like a folder, got {name!r}")
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ConfigurationError(
                f"`exports_to_keep`, if provided, must be a positive number, got {exports_to_keep}"
            )
        self.name = name
        self._receiver, self._keep = serving_input_receiver_fn, exports_to_keep

    def _export(self, estimator: "Estimator", export_path: str, checkpoint_path: str) -> str:
        path = estimator.export_saved_model(export_path, self._receiver, checkpoint_path)
        if self._keep is not None:
            for old in exports_in(export_path)[: -self._keep]:
                remove_tree(old)
        log.info("%s exported %s to %s", self.name, checkpoint_path, path)
        return path


class LatestExporter(_Exporter):
    """Exports every checkpoint that is evaluated.

    Args:
        name: Name of the exporter.
        serving_input_receiver_fn: Returns features of a few examples, as for
            ``Estimator.export_saved_model``.
        exports_to_keep: Number of the newest exports to keep; None: all.
    """

    def export(
        self,
        estimator: "Estimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,  # noqa: ARG002
        is_the_final_export: bool,  # noqa: ARG002
    ) -> str | None:
        """Export it."""
        return self._export(estimator, export_path, checkpoint_path)


class FinalExporter(_Exporter):
    """Exports the last checkpoint of a training.

    Args:
        name: Name of the exporter.
        serving_input_receiver_fn: Returns features of a few examples, as for
            ``Estimator.export_saved_model``.
    """

    def __init__(self, name: str, serving_input_receiver_fn: Any = None) -> None:
        super().__init__(name, serving_input_receiver_fn, None)

    def export(
        self,
        estimator: "Estimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,  # noqa: ARG002
        is_the_final_export: bool,
    ) -> str | None:
        """Export it if it is the last."""
        if not is_the_final_export:
            return None
        return self._export(estimator, export_path, checkpoint_path)


def smaller_loss(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    """Return whether the current loss is the smaller one.

    Raises:
        ConfigurationError: One of them has no loss.
    """
    for result in (best_eval_result, current_eval_result):
        if "loss" not in result:
            raise ConfigurationError("an evaluation has no loss; give BestExporter a compare_fn")
    best, current = float(best_eval_result["loss"]), float(current_eval_result["loss"])
    return current < best or (math.isnan(best) and not math.isnan(current))


class BestExporter(_Exporter):
    """Exports a checkpoint whenever it is better than all before, also before a restart.

    Args:
        name: Name of the exporter.
        serving_input_receiver_fn: Returns features of a few examples, as for
            ``Estimator.export_saved_model``.
        compare_fn: ``compare_fn(best_eval_result, current_eval_result)``: whether the current one
            is better.
        exports_to_keep: Number of the newest exports to keep; None: all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        compare_fn: CompareFn = smaller_loss,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, exports_to_keep)
        if not callable(compare_fn):
            raise ConfigurationError("`compare_fn` must be a function of two results")
        self._compare = compare_fn

    def export(
        self,
        estimator: "Estimator",
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,  # noqa: ARG002
    ) -> str | None:
        """Export it if it is better."""
        if eval_result is None:
            return None
        kept = Path(export_path) / _BEST
        best = _best_in(kept)
        if best is not None and not self._compare(best, eval_result):
            return None
        path = self._export(estimator, export_path, checkpoint_path)
        numbers = {key: _number(value) for key, value in eval_result.items()}
        kept.write_text(json.dumps({k: v for k, v in numbers.items() if v is not None}))
        return path


def _best_in(kept: Path) -> Any:
    """Read the numbers of the best result so far; None: there are none, or none that can be
    read.
    """
    if not kept.exists():
        return None
    try:
        best = read_json(read_plain(kept, _MOST_BYTES))
        if not isinstance(best, dict):
            raise ValueError("it is not an object")
    except (ValueError, OSError) as error:
        log.warning("%s is not used, so the next export counts as the best: %s", kept, error)
        return None
    return best


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
