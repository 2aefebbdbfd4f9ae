"""Commands that the standing cluster brings."""

COMMANDS = {
    "attach": "annexes.service.jobs_commands:attach_command",
    "jobs": "annexes.service.jobs_commands:jobs_command",
    "logs": "annexes.service.jobs_commands:logs_command",
    "stop": "annexes.service.jobs_commands:stop_command",
    "submit": "annexes.service.submit_command:submit_command",
}
