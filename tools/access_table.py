"""Write the table of roles into docs/security.md, or check with ``--check`` that it is current."""

from page_table import PageTable

from ropewalk.cluster.access import ROLES, RULES


def table() -> str:
    """The table in Markdown."""
    lines = [f"| what | {' | '.join(ROLES)} | |", f"|---|{':-:|' * len(ROLES)}---|"]
    for operation, rule in RULES.items():
        name = operation.removeprefix("/ropewalk.proto.v1.").removeprefix("/grpc.health.v1.")
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


PAGE = PageTable(
    "security.md",
    "<!-- table of roles: cluster/access.py -->",
    table,
    "tools/access_table.py",
)


if __name__ == "__main__":
    PAGE.main()
