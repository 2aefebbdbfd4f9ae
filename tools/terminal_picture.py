"""Draw the pictures of the terminal in ``docs/images``, from real runs.

A run gets a terminal of its own (a pty), which pyte interprets and rich draws: ``terminal.svg`` as
it looks while ``examples/digits`` runs, with the progress bar, and below at the end; ``status.svg``
what ``ropewalk status`` says meanwhile; ``failure.svg`` a program with a mistake; ``resume.svg`` a
job that Ctrl-C has stopped, started again.

    python tools/terminal_picture.py
"""

import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
import pyte.screens
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
ROPEWALK = [sys.executable, "-m", "ropewalk.launch.cli"]
RUN = "ropewalk local --chief --workers 2 --ps 2 --evaluator examples/digits/train.py"
FAIL = "ropewalk local --workers 2 --ps 2 train.py"
RESUME = "ropewalk local --workers 2 --ps 2 --model-dir runs/model train.py"
STATUS = "ropewalk status runs/model"
MISTAKE = """\
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(3, np.float32), name="w")


def step(features, targets):
    error = features @ w.read_value() - targets
    w.assign_sub(features.T @ error / len(error))


for _ in range(100):
    strategy.run(step, args=(np.ones((32, 4)), np.ones(32)))
"""
COLUMNS, LINES = 100, 60
PART = 2 / 3  # of the steps: when the bar is drawn


PACED = """\
import time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros((3, 1), np.float32), name="w")
optimizer = rw.optimizers.Adam(0.01)
while strategy.global_step < 1000:
    strategy.run(lambda: optimizer.apply_gradients([(w.read_value() - 1, w)]))
    loss = float(np.square(w.read_value() - 1).mean())
    rw.training.report(loss=loss, total_steps=1000)
    time.sleep(0.03)
"""


def draw(screen: pyte.Screen) -> list[Text]:
    """The lines of the screen that are not empty."""
    lines = []
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            char = screen.buffer[row][column]
            colour = "" if char.fg == "default" else char.fg.replace("bright", "bright_")
            if re.fullmatch(r"[0-9a-f]{6}", colour):
                colour = f"#{colour}"
            if colour == "brown":
                colour = "yellow"
            style = f"{'bold ' if char.bold else ''}{colour}".strip()
            line.append(char.data, style=style or None)
        line.rstrip()
        if line.plain.strip():
            lines.append(line)
    return lines


def watch(
    command: list[str],
    folder: str,
    at_part: Callable[[int], object] = lambda _pid: None,
    part: float = PART,
) -> tuple[list[Text], list[Text], int]:
    """The screen when the run was at ``part``, the one at its end, and its exit code."""
    master, slave = pty.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    middle: list[Text] = []
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment
    ) as process:
        os.close(slave)
        try:
            while data := os.read(master, 4096):
                stream.feed(data)
                found = re.search(r"step (\d+)/(\d+)", "\n".join(screen.display))
                if not middle and found and int(found[1]) > part * int(found[2]):
                    middle = draw(screen)
                    at_part(process.pid)
        except OSError:
            pass  # Linux: the other side is closed
    return middle, draw(screen), process.returncode


def write_picture(name: str, command: str, lines: Iterable[Text]) -> None:
    """Write a picture of a command and what it has shown."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop")
    # Without the style's fonts, which would be fetched from elsewhere.
    plain = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    plain = re.sub(r"<!-- .*? -->", "<!-- Drawn by tools/terminal_picture.py -->", plain)
    svg = console.export_svg(title=" ".join(command.split()[:2]), code_format=plain)
    text = "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
    (IMAGES / f"{name}.svg").write_text(text)


def must(code: int, expected: int, shown: list[Text]) -> None:
    """End unless a run has ended as it should."""
    if code != expected:
        text = "\n".join(line.plain for line in shown)
        raise SystemExit(f"{text}\nended with {code}, not {expected}")


def main() -> None:
    """Run the programs and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        (Path(folder) / "train.py").write_text(MISTAKE)
        status: list[Text] = []

        def look_and_stop(pid: int) -> None:
            _, lines, code = watch([*ROPEWALK, *STATUS.split()[1:]], folder)
            must(code, 0, lines)
            status.extend(lines)
            os.kill(pid, signal.SIGINT)

        middle, end, code = watch([*ROPEWALK, *RUN.split()[1:]], folder)
        must(code, 0, end)
        table = next(i for i, line in enumerate(end) if re.match(r"tasks?\b", line.plain))
        write_picture("terminal", RUN, [*middle, Text("⋮"), *end[table:]])

        _, end, code = watch([*ROPEWALK, *FAIL.split()[1:]], folder)
        must(code, 1, end)
        write_picture("failure", FAIL, end)

        (Path(folder) / "train.py").write_text(PACED)
        resume = [*ROPEWALK, *RESUME.split()[1:]]
        _, stopped, code = watch(resume, folder, look_and_stop, part=0.2)
        must(code, 143, stopped)
        write_picture("status", STATUS, status)
        _, end, code = watch(resume, folder)
        must(code, 0, end)
        begin = next(i for i, line in enumerate(stopped) if line.plain.startswith("Ctrl-C"))
        again = Text(f"$ {RESUME}", style="bold")
        write_picture("resume", RESUME, [Text("⋮"), *stopped[begin:], again, *end])


if __name__ == "__main__":
    main()
