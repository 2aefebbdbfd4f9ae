"""Commands that Kubernetes brings, where there are job files."""

from ...core import annexes

COMMANDS = (
    {"k8s": "annexes.kubernetes.k8s_commands:k8s_command"}
    if "jobfile" in annexes.installed()
    else {}
)
