"""What it costs to find out who calls: a token seen before and a new one, and the proof of a key.

    python -m benchmarks.admission        # a second

In one process, without a network: it is what a call takes longer. The bar: a token that is shown
again in 0.02 ms.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.running import Figure, measure
from ropewalk.cluster.access import Principal
from ropewalk.net.auth import proof
from ropewalk.net.auth.token import TokenChecker, new_keys, public_key_of, sign_token

OPERATION = "session ps"
WHO = Principal("worker", "bench", 0)


def token_times(folder: Path, budget_s: float) -> dict[str, Figure]:
    """Of a check of a token."""
    private, _ = new_keys()
    keys = folder / "keys.pub"
    keys.write_bytes(public_key_of(private))
    checker = TokenChecker(str(keys))
    known = sign_token(private, WHO, 3600)
    # Tokens that expire a second apart differ.
    others = itertools.cycle([sign_token(private, WHO, 3600 + later) for later in range(2048)])
    return {
        "a token, again": measure(lambda: checker.check(known), budget_s),
        "a token, for the first time": measure(lambda: checker.check(next(others)), budget_s),
    }


def proof_times(budget_s: float) -> dict[str, Figure]:
    """Of a proof of the key: what the caller and the server compute, both ways."""
    key, purpose = bytes(32), proof.Purpose(OPERATION, "127.0.0.1:1")
    checker, numbers = proof.ProofChecker(key, 0.0), itertools.count()

    def prove() -> None:
        now, nonce = time.monotonic(), f"{next(numbers):032x}"
        checker.check(proof.ask(key, purpose, WHO, nonce, now), OPERATION, {purpose.address}, now)
        assert proof.check_answer(key, purpose, nonce, proof.answer(key, purpose, nonce))

    return {"a proof, both sides": measure(prove, budget_s)}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=0.3, help="for each case")
    budget_s = parser.parse_args().budget_s
    with tempfile.TemporaryDirectory() as folder:
        figures = token_times(Path(folder), budget_s) | proof_times(budget_s)
    table = Table(title="who calls, ms", title_justify="left")
    for title in ("case", "median", "p90", "times"):
        table.add_column(title, justify="left" if title == "case" else "right")
    for name, figure in figures.items():
        table.add_row(name, f"{figure.median_ms:.4f}", f"{figure.p90_ms:.4f}", str(figure.steps))
    Console().print(table)


if __name__ == "__main__":
    main()
