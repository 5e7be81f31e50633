"""The reference trainers: each loop reads top to bottom in one file."""
