"""Frozen data that crosses layers: numpy columns in, plans and reports out."""
