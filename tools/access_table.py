"""Write the table of roles into docs/security.md, or check with ``--check`` that it is current."""

import sys
from pathlib import Path

from windlass.cluster.access import RULES
from windlass.cluster.principal import ROLES

PAGE = Path(__file__).parents[1] / "docs" / "security.md"
_BEGIN, _END = "<!-- table of roles: cluster/access.py -->", "<!-- end of the table -->"


def table() -> str:
    """The table in Markdown."""
    lines = [f"| what | {' | '.join(ROLES)} | |", f"|---|{':-:|' * len(ROLES)}---|"]
    for operation, rule in RULES.items():
        name = operation.removeprefix("/windlass.proto.v1.").removeprefix("/grpc.health.v1.")
        marks = ["x" if not rule.roles or role in rule.roles else "" for role in ROLES]
        notes = [
            text
            for text, holds in (
                ("anybody", not rule.roles),
                ("the leader", rule.leads),
                ("audited", rule.audited),
            )
            if holds
        ]
        lines.append(f"| `{name}` | {' | '.join(marks)} | {', '.join(notes)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with the current table."""
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2] or rest
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


def main() -> None:
    """Entry point."""
    text = PAGE.read_text()
    if "--check" in sys.argv:
        if with_table(text) != text:
            sys.exit(f"{PAGE} is not current; run python tools/access_table.py")
        return
    PAGE.write_text(with_table(text))


if __name__ == "__main__":
    main()
