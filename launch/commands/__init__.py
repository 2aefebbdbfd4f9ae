"""The subcommands of ropewalk that belong to no launcher."""
