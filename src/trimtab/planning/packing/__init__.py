"""Balanced dynamic mini-batches: samples into packs under caps, packs into steps of alike packs."""
