"""The history of a job beside the chief's loop, and its page, if the chief is to serve it."""

from ...core.checkpoint.storage import open_model_dir
from ...worker.lead.companions import Companion, LedJob
from .keeping import History, HistoryKeeper
from .settings import DashboardSettings


def companions(led: LedJob) -> list[Companion]:
    """Keep the history of the job, and serve its page.

    Args:
        led: The job that is led.
    """
    model_dir = led.settings.model_dir
    folder = open_model_dir(model_dir) if model_dir else None
    history = led.locked_job.part(History)
    keeper = HistoryKeeper(history, folder, led.locked_job.clock.now())
    if not DashboardSettings.of(led.settings).dashboard_port:
        return [keeper]
    from .chiefs_page import ChiefsPage

    return [keeper, ChiefsPage(led)]
