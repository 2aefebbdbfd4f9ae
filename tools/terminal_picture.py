"""Draw ``docs/images/terminal.svg``: the terminal of a real run of ``examples/digits``.

The run gets a terminal of its own (a pty), which pyte interprets and rich draws: as it looks while
the job runs, with the progress bar, and below what it looks like at the end.

    python tools/terminal_picture.py
"""

import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
import pyte.screens
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
SHOWN = "windlass local --chief --workers 2 --ps 2 --evaluator examples/digits/train.py"
COLUMNS, LINES = 100, 60
PART = 2 / 3  # of the steps: when the bar is drawn


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


def watch(command: list[str], folder: str) -> tuple[list[Text], list[Text]]:
    """The screen when the run was at ``PART``, and at its end."""
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
                if not middle and found and int(found[1]) > PART * int(found[2]):
                    middle = draw(screen)
        except OSError:
            pass  # Linux: the other side is closed
    if process.returncode or not middle:
        raise SystemExit("\n".join([*screen.display, f"ended with {process.returncode}"]))
    return middle, draw(screen)


def main() -> None:
    """Run the example and write the picture."""
    program = ROOT / "examples" / "digits" / "train.py"
    arguments = [*SHOWN.split()[1:-1], "--model-dir", "runs/digits", str(program)]
    command = [sys.executable, "-m", "windlass.launch.cli", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        middle, end = watch(command, folder)
    table = next(i for i, line in enumerate(end) if line.plain.startswith("tasks"))
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text(f"$ {SHOWN}", style="bold"))
    for line in [*middle, Text("⋮"), *end[table:]]:
        console.print(line, no_wrap=True, overflow="crop")
    # Without the style's fonts, which would be fetched from elsewhere.
    plain = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="windlass local", code_format=plain)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
