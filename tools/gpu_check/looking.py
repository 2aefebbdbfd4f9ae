"""A row's process: ``python -m tools.gpu_check.looking ROW FILE`` looks, and writes the verdict."""

import json
import sys
import time
import traceback
from pathlib import Path

from .rows import Result, Row, Skip, Verdict, all_rows, chosen, judged, result_of


def look(row: Row) -> Result:
    """Look whether a promise holds, in this process."""
    start = time.perf_counter()
    try:
        verdict, got = judged(row, row.look())
    except Skip as reason:
        verdict, got = Verdict.SKIP, str(reason)
    except Exception as error:
        traceback.print_exc()
        verdict, got = Verdict.FAIL, _words(error)
    return result_of(row, verdict, got, time.perf_counter() - start)


def _words(error: Exception) -> str:
    """Write the kind of an error and the first lines of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:6])}"[:400]


if __name__ == "__main__":
    (wanted,) = chosen(all_rows(), [sys.argv[1]])
    Path(sys.argv[2]).write_text(json.dumps(look(wanted).as_json()))
