"""A table of a page of the documentation that is made of the source: write it, or check it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table between two comments of a page.

    Attributes:
        page: Its name, below docs.
        begin: The comment in front of the table.
        table: Makes the table, in Markdown.
        tool: The program that writes it.
    """

    page: str
    begin: str
    table: Callable[[], str]
    tool: str

    _END = "<!-- end of the table -->"

    @property
    def path(self) -> Path:
        """Of the page."""
        return DOCS / self.page

    def with_table(self, text: str) -> str:
        """The page with the current table.

        Raises:
            ValueError: It has no place for one.
        """
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self._END)
        if not (begin and end):
            raise ValueError(f"{self.path} has no {self.begin} and {self._END} behind it")
        return f"{before}{begin}\n\n{self.table()}\n\n{end}{after}"

    def main(self) -> None:
        """Write the page; with ``--check`` exit with what to do if it is not current."""
        text = self.path.read_text()
        current = self.with_table(text)
        if "--check" not in sys.argv:
            self.path.write_text(current)
        elif current != text:
            sys.exit(f"{self.path} is not current; run python {self.tool}")
