"""Draw ``docs/images/trace.svg``: one step of the digits, of a worker and two ps.

    .venv/bin/python tools/trace_picture.py [FILE]

Trains the digits, traces some steps with ``ropewalk trace``, and draws the shortest one. With a
file of ``ropewalk trace`` that is drawn.
"""

import html
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "trace.svg"
ROPEWALK = [sys.executable, "-m", "ropewalk"]
TRAIN = [*ROPEWALK, "local", "--workers", "2", "--ps", "2", "--plain"]
COLOURS = {
    "step": "#d3d9e2", "data": "#f2cf5b", "pull": "#7aa6c2", "push": "#4c78a8", "others": "#b279a2",
    "checkpoint": "#9d755d", "lock": "#e45756", "apply": "#54a24b", "answer": "#88bfa9",
    "heartbeat": "#888888",
}  # fmt: skip
_LEFT, _WIDTH, _ROW, _BAR = 150, 860, 26, 18
_WRITTEN = 28  # pixels that a name needs
_Event = dict[str, Any]


def traced(folder: Path) -> Path:
    """Train the digits, and trace some steps of theirs."""
    program, file = ROOT / "examples" / "digits" / "train.py", folder / "steps.json"
    words = [*TRAIN, "--model-dir", str(folder / "model"), str(program)]
    job = subprocess.Popen([*words, "--steps", "1000000"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        ask = [*ROPEWALK, "trace", str(folder / "model"), "-n", "20", "-o", str(file)]
        while subprocess.run(ask, check=False).returncode:
            if time.monotonic() > until:
                raise TimeoutError("no step was traced in 120 s")
            time.sleep(1)
    finally:
        job.send_signal(signal.SIGINT)
        job.send_signal(signal.SIGINT)
        job.wait(60)
    return file


def shortest(events: Sequence[_Event]) -> list[_Event]:
    """Choose the spans of the shortest step of a worker, without the heartbeat after it."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    shown = [e for e in events if e["ph"] == "X" and e["name"] != "heartbeat"]
    steps = [e for e in shown if e["name"] == "step" and names[e["pid"]].startswith("worker")]
    trace = min(steps, key=lambda each: each["dur"])["args"]["trace"]
    return [e for e in shown if e["args"]["trace"] == trace]


def rows_of(spans: Sequence[_Event], events: Sequence[_Event]) -> dict[str, list[_Event]]:
    """Sort spans into rows by task and track, parts below what they are parts of."""
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    rows: dict[str, list[_Event]] = {}
    for each in sorted(spans, key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"])):
        task = named["process_name", each["pid"], 0]
        track = named["thread_name", each["pid"], each["tid"]]
        is_inner = each["name"] not in ("step", "push", "pull") or track == "steps"
        depth = " " if is_inner and each["name"] != "step" else ""
        rows.setdefault(f"{task} {track}{depth}", []).append(each)
    return rows


def drawn(rows: dict[str, list[_Event]]) -> Iterator[str]:
    """Yield the lines of the picture."""
    every = [each for row in rows.values() for each in row]
    zero = min(each["ts"] for each in every)
    whole = max(each["ts"] + each["dur"] for each in every) - zero
    height = _ROW * len(rows) + 66
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    for number, (label, row) in enumerate(rows.items()):
        y = 8 + number * _ROW
        if not label.endswith(" "):
            yield f'<text x="8" y="{y + 13}" fill="#333333">{html.escape(label)}</text>'
        for each in row:
            x = _LEFT + (each["ts"] - zero) / whole * _WIDTH
            width = max(1.0, each["dur"] / whole * _WIDTH)
            about = f"{each['name']}: {each['dur']:.0f} µs"
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" '
                f'fill="{COLOURS[each["name"]]}"><title>{about}</title></rect>'
            )
            if width > _WRITTEN:
                colour = "#333333" if each["name"] in ("step", "data", "answer") else "#ffffff"
                yield f'<text x="{x + 4:.1f}" y="{y + 13}" fill="{colour}">{each["name"]}</text>'
    foot = height - 36
    yield f'<text x="{_LEFT}" y="{foot}" fill="#666666">0</text>'
    yield (
        f'<text x="{_LEFT + _WIDTH}" y="{foot}" text-anchor="end" fill="#666666">'
        f"{whole / 1000:.2f} ms</text>"
    )
    here = [name for name in COLOURS if any(each["name"] == name for each in every)]
    for number, name in enumerate(here):
        x, y = _LEFT + 90 * number, height - 24
        yield f'<rect x="{x}" y="{y}" width="12" height="12" rx="2" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 18}" y="{y + 10}" fill="#333333">{name}</text>'
    yield "</svg>"


def main() -> None:
    """Trace, and draw."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[1]) if len(sys.argv) > 1 else traced(Path(folder))
        events = json.loads(file.read_text())["traceEvents"]
    rows = rows_of(shortest(events), events)
    PICTURE.write_text("\n".join(drawn(rows)) + "\n")


if __name__ == "__main__":
    main()
