"""Published partition algorithms, by name, written anew from their descriptions."""
