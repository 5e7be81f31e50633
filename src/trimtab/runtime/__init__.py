"""What runs a plan on torch ranks. Process groups are arguments; nothing here is global."""
