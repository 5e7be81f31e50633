"""The command line: one file a command, loaded when the command is called."""
