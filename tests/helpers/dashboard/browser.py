"""The machine's Chromium on a page of ours: what it has said, asked for and shown."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VIEWS = ("overview", "tasks", "topology", "variables", "replicas", "events", "logs", "checkpoints")


class Browser:
    """One page in a browser.

    Attributes:
        page: Playwright's page.
        said: Messages of its console, and errors.
        asked: Addresses that it has asked for.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.asked.append(request.url))

    def _dismiss(self, dialog: Any) -> None:
        self.said.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, link: str) -> None:
        """Follow a link until the head has the job."""
        self.page.goto(link)
        self.page.wait_for_selector("#numbers dd")

    def view(self, name: str) -> str:
        """Go to a view; its text."""
        self.page.click(f'nav a[href="#{name}"]')
        self.page.wait_for_selector(f'nav a[href="#{name}"][aria-current="page"]')
        return str(self.page.inner_text("main"))

    def wait_for(self, text: str, where: str = "body") -> None:
        """Wait until a text is shown."""
        self.page.wait_for_function(
            "([where, text]) => document.querySelector(where)?.textContent.includes(text)",
            arg=[where, text],
        )

    def contrast(self, selector: str) -> float:
        """The contrast of a text and its ground, as WCAG counts it."""
        colours = self.page.eval_on_selector(
            selector,
            """(element) => {
                let ground = element;
                const of = (at) => getComputedStyle(at).backgroundColor;
                while (of(ground).endsWith(", 0)")) ground = ground.parentElement;
                return [getComputedStyle(element).color, of(ground)];
            }""",
        )
        light, dark = sorted(map(_luminance, colours), reverse=True)
        return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@contextmanager
def chromium(*, width: int = 1280, dark: bool = False) -> Iterator[Browser]:
    """Start it until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        context = started.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(60_000)
        yield Browser(context.new_page())
        started.close()
