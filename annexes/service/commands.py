"""Commands that the standing cluster brings."""

COMMANDS = {
    "attach": "annexes.service.launch.jobs_commands:attach_command",
    "jobs": "annexes.service.launch.jobs_commands:jobs_command",
    "logs": "annexes.service.launch.jobs_commands:logs_command",
    "stop": "annexes.service.launch.jobs_commands:stop_command",
    "submit": "annexes.service.launch.submit_command:submit_command",
}
