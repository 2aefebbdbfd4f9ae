"""Variables by which a task finds the files that show who it is. Pure."""

from .model import Job

TLS_FILES = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
TOKEN = "token"  # noqa: S105 - the name of a file
TOKEN_KEYS = "token.pub"  # noqa: S105


def credential_variables(job: Job, tls: str, token: str) -> dict[str, str]:
    """``WINDLASS_…`` for the security mode of a job; the files given imply the mode.

    Args:
        job: The job.
        tls: Folder of the certificate, its key and the CA.
        token: Folder of the token and of the keys of all tokens.
    """
    if job.security.mode == "insecure":
        return {"WINDLASS_INSECURE": "true"}
    values = {f"WINDLASS_TLS_{name}": f"{tls}/{file}" for name, file in TLS_FILES.items()}
    if job.security.mode == "token":
        values["WINDLASS_TOKEN_FILE"] = f"{token}/{TOKEN}"
        values["WINDLASS_TOKEN_KEYS"] = f"{token}/{TOKEN_KEYS}"
    return values
