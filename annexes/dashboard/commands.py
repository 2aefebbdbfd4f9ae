"""The command that the page brings."""

COMMANDS = {"dashboard": "annexes.dashboard.command:dashboard_command"}
