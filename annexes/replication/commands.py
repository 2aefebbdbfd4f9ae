"""Commands about shares that move."""

COMMANDS = {
    "move": "annexes.replication.share_commands:move_command",
    "scale": "annexes.replication.share_commands:scale_command",
}
