"""Scans one of the demo's datasets for its model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from trimtab.families.checkpoint import read_checkpoint
from trimtab.loader.scan import Scanner
from trimtab.loader.sources import open_dataset
from trimtab.loader.tokenizer import load_tokenizer
from trimtab.schema.table_file import write_table


def scan_dataset(model: Path, jsonl: Path, console: Console) -> Path:
    """Write the metadata table beside the dataset and tell what is in it.

    Returns:
        The table's path.
    """
    checkpoint = read_checkpoint(model)
    scanner = Scanner(tokenizer=load_tokenizer(model), family=checkpoint.family, geometry=checkpoint.geometry)
    with console.status(f"scanning {jsonl}"):
        result = scanner.scan(open_dataset(jsonl))
    table = jsonl.with_suffix(".parquet")
    write_table(result.table, table)
    tokens = result.table.batch().tokens
    console.print(
        f"scanned {jsonl}: {len(tokens)} samples, median {int(np.median(tokens))} tokens, longest {int(tokens.max())}",
        soft_wrap=True,
    )
    return table
