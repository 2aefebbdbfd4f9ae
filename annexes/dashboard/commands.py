"""Commands that the page and the terminal bring."""

COMMANDS = {
    "dashboard": "annexes.dashboard.command:dashboard_command",
    "top": "annexes.dashboard.top_command:top_command",
}
