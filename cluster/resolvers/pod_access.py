"""The account that the Kubernetes API refused, and the command that gives it a role. Pure."""

import re

_ACCOUNT = re.compile(r'User \\?"([^"\\]+)\\?" cannot ')  # its quotes may be those of JSON
_SERVICE_ACCOUNT = "system:serviceaccount:"


def account_of(message: str) -> str:
    """Find the account in the message of a 403: ``system:serviceaccount:train:default`` or a user.

    Empty: the message names none, so that it was not a role that was missing.
    """
    match = _ACCOUNT.search(message)
    return match[1] if match else ""


def grant(account: str, role: str, namespace: str) -> str:
    """Write the ``kubectl`` command that binds an account to a role of a namespace."""
    if account.startswith(_SERVICE_ACCOUNT):
        who = f"--serviceaccount={account.removeprefix(_SERVICE_ACCOUNT)}"
    else:
        who = f"--user={account}"
    name = re.sub(r"[^a-z0-9-]+", "-", f"{role}-{account.rpartition(':')[2]}".lower()).strip("-")
    return f"kubectl -n {namespace} create rolebinding {name} --role={role} {who}"
