"""Commands that Kubernetes brings."""

COMMANDS = {"k8s": "annexes.kubernetes.command:k8s_command"}
