"""Runs a part of the demo on its ranks, to the end."""

from __future__ import annotations

from typing import Any

from trimtab.training.launch import Train, launch


def run_to_the_end(train: Train, settings: Any) -> None:
    """``launch`` a run that keeps no checkpoint.

    Raises:
        KeyboardInterrupt: a signal stopped it; the demo is run again.
        TrimtabError: a rank failed.
    """
    if launch(train, settings) != 0:
        raise KeyboardInterrupt
