"""One mapping per model family from a Hub config to an architecture."""
