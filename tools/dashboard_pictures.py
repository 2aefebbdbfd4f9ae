"""Draw the pictures of the page in docs/dashboard.md: a training of the digits, in Chromium.

    .venv/bin/python tools/dashboard_pictures.py [MODEL_DIR]

With a model directory they are of the job there, which may be over or run.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ropewalk.annexes.dashboard.serving import ServedPage
from ropewalk.annexes.dashboard.watched_job import WatchedJob
from ropewalk.core.settings import load_settings
from ropewalk.launch.found_job import JobAsker, job_in_folder

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
TRAIN = ["ropewalk", "local", "--chief", "--workers", "2", "--ps", "2", "--ps-replicas", "2"]
VIEWS = [("overview", 1280, "light"), ("tasks", 1280, "dark")]


def train(folder: str) -> None:
    """Train until it is over."""
    program = str(ROOT / "examples" / "digits" / "train.py")
    words = [*TRAIN, "--plain", "--model-dir", folder, program, "--pause-s", "0.02"]
    subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)


def draw(page: Page, view: str, width: int, scheme: str) -> None:
    """Take one picture."""
    page.set_viewport_size({"width": width, "height": 720})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.evaluate(f"location.hash = '{view}'")
    page.wait_for_selector("main canvas" if view == "overview" else "main tbody tr")
    page.wait_for_timeout(1500)  # curves fade in with the next news
    page.screenshot(path=IMAGES / f"dashboard-{view}-{width}.png")


def main() -> None:
    """Serve the page, and draw it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/digits"
        if len(sys.argv) == 1:
            train(folder)
        asker = JobAsker(load_settings({}), 5.0)
        job, links = WatchedJob(job_in_folder(folder, asker), asker), list[str]()
        served = ServedPage(job, asker.settings, "127.0.0.1", 0, lambda _, link: links.append(link))
        served.start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            page = browser.new_page()
            page.goto(links[0])
            page.wait_for_selector("#numbers dd")
            for view in VIEWS:
                draw(page, *view)
            browser.close()
        served.close()
        job.close()


if __name__ == "__main__":
    main()
