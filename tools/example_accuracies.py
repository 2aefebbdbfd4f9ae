"""Runs the examples that learn digits or words, and draws what accuracy each reaches.

    python tools/example_accuracies.py docs/images/examples.svg

Each runs alone and as a chief, two workers and two ps of this machine, with the command that its
first lines show; what it prints last counts. Needs matplotlib, scikit-learn and the frameworks.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_ACCURACY = re.compile(r"accuracy (?:= )?(\d\.\d+)")
_TIMEOUT_S = 300
_LOCAL = ("-m", "ropewalk", "local", "--plain", "--workers", "2", "--ps", "2")


@dataclass(frozen=True)
class Program:
    """One line of the picture.

    Attributes:
        title: For people.
        path: Below ``examples``.
        backend: Keras' backend.
        flags: Flags of ``ropewalk local``, beside workers and ps.
    """

    title: str
    path: str
    backend: str = "jax"
    flags: tuple[str, ...] = ()


PROGRAMS = (
    Program("digits, Keras on JAX", "digits_keras.py"),
    Program("digits, Keras on PyTorch", "digits_keras.py", "torch"),
    Program("digits, Keras on TensorFlow", "digits_keras.py", "tensorflow"),
    Program("digits, PyTorch", "digits_torch.py"),
    Program("digits, JAX", "digits_jax.py"),
    Program("digits, moved Estimator", "estimator_digits.py", flags=("--evaluator",)),
    Program("digits*, moved TF 2 program, fit", "ported/parameter_server_fit.py"),
    Program("words, moved TF 2 program, loop", "ported/parameter_server_training.py"),
)


def accuracy_of(program: Program, *, on_cluster: bool) -> float:
    """What a program prints last.

    Raises:
        RuntimeError: It failed, or printed no accuracy.
    """
    local = [*_LOCAL, *program.flags]
    command = [
        sys.executable,
        *(local if on_cluster else ()),
        str(_ROOT / "examples" / program.path),
    ]
    variables = {"KERAS_BACKEND": program.backend, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "steps/s" not in line]
    said = [found for line in lines if "done:" not in line for found in _ACCURACY.findall(line)]
    if done.returncode or not said:
        raise RuntimeError(
            f"{program.path} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return float(said[-1])


def draw(found: dict[str, tuple[float, float]], target: Path) -> None:
    """One picture: a line for each program, with a point alone and one on the cluster."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "ropewalk", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    places = list(range(len(found)))[::-1]
    for column, (label, colour, marker) in enumerate(
        (("alone", "#4c78a8", "o"), ("a chief, 2 workers, 2 ps", "#e45756", "D"))
    ):
        values = [pair[column] for pair in found.values()]
        axes.scatter(values, places, color=colour, marker=marker, s=28, label=label, zorder=3)
    axes.set_yticks(places, [f"{title}  {a:.3f}, {b:.3f}" for title, (a, b) in found.items()])
    axes.set(xlabel="accuracy", xlim=(0.88, 1.005))
    axes.grid(color="#dddddd", linewidth=0.5)
    figure.legend(frameon=False, loc="upper right", ncols=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    """Run all, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    found = {}
    for program in PROGRAMS:
        pair = tuple(accuracy_of(program, on_cluster=where) for where in (False, True))
        found[program.title] = (pair[0], pair[1])
        print(f"{program.title:34} alone {pair[0]:.4f}, cluster {pair[1]:.4f}", flush=True)
    draw(found, arguments.target)
    print(f"{arguments.target}: {arguments.target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
