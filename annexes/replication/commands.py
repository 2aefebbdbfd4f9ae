"""Commands about shares that move."""

COMMANDS = {
    "move": "annexes.replication.move_command:move_command",
    "scale": "annexes.replication.scale_command:scale_command",
}
