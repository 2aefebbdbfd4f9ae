"""rich's console for text of others: neither escape sequences nor markup in it have a meaning."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ...core.terminal import terminal_text


class TerminalConsole(Console):
    """A console that writes rich's own control codes, and of texts only what can be read.

    What is to have a style is a ``Text``, or is printed with one: there is no markup. So are the
    colours of a program's output: ``Text.from_ansi``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Make text of a string; cleaned first, so that tables know how wide it is."""
        return super().render_str(terminal_text(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render everything that is printed, in pieces."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=terminal_text(segment.text))
