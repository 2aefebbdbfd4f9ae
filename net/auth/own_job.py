"""The job and the index that a task's own credentials name.

A ps that knows its job from the start accepts no chief of another one, even if that comes first.
"""

from ...core.errors import ConfigurationError
from ...core.settings import Settings
from ..tls.files import credential_files
from . import token
from .mode import SecurityMode, security_mode


def with_own_job(settings: Settings) -> Settings:
    """Add to the settings the job that this task's certificate or token names.

    Args:
        settings: A task's; returned unchanged without a certificate and a token, or if these are
            valid for any job.

    Raises:
        ConfigurationError: The files cannot be used, or name another job than ``job_id``, or than
            each other.
    """
    if _shows_nothing(settings):
        return settings
    return settings.model_copy(update={"job_id": _only_job(settings, job_id=settings.job_id)})


def job_of_credentials(settings: Settings) -> str:
    """Read the job that a process's certificate or token names; empty without one, or if it names
    none.

    Unlike ``job_id``, which may be the name of a cluster on which jobs run.

    Raises:
        ConfigurationError: The files cannot be used, or name different jobs.
    """
    return "" if _shows_nothing(settings) else _only_job(settings)


def _only_job(settings: Settings, **others: str) -> str:
    named = others | {name: job for name, (job, _) in _credentials(settings).items()}
    jobs = {job: name for name, job in named.items() if job}
    if len(jobs) > 1:
        of_settings = " and ".join(f"{job!r} in {name}" for job, name in jobs.items())
        raise ConfigurationError(
            f"this task has credentials of another job than its own: {of_settings}; each job needs "
            "certificates and tokens of its own"
        )
    return next(iter(jobs), "")


def _shows_nothing(settings: Settings) -> bool:
    return settings.insecure or settings.security == "insecure"


def are_of_one_index(settings: Settings) -> bool:
    """Return whether this task's certificate or token is valid for its own index alone.

    Raises:
        ConfigurationError: The files cannot be used.
    """
    if _shows_nothing(settings):
        return False
    return any(has_index for _, has_index in _credentials(settings).values())


def _credentials(settings: Settings) -> dict[str, tuple[str, bool]]:
    """Read, by setting, the job that each credential names, and whether it has an index."""
    by_setting = {}
    if settings.tls_cert:
        mutual = security_mode(settings, "") is SecurityMode.MTLS
        principal = credential_files(settings, mutual=mutual).current().principal
        if principal is not None:
            by_setting["tls_cert"] = principal.job, principal.index is not None
    if settings.token_file:
        claims = token.claims_of(token.TokenFile(settings.token_file).token())
        by_setting["token_file"] = str(claims.get("job", "")), claims.get("index") is not None
    return by_setting
