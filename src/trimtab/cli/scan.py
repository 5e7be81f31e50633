"""Reads what each sample of a dataset costs from file headers into a metadata table (Parquet).

The dataset: JSONL, JSON or Parquet files with chat messages, LLaVA or ShareGPT conversations, or verl prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.cli.model_argument import add_model_arguments, load_tokenizer, resolve_model
from trimtab.errors import SettingsError
from trimtab.schema.number_of import number_of
from trimtab.schema.output_file import check_writable
from trimtab.schema.printable import printable
from trimtab.schema.table_file import write_table

_BAD_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "data", nargs="+", metavar="DATA", help="JSONL, JSON, Parquet or tar file or URL, or saved folder"
    )
    add_model_arguments(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="metadata table to write, a Parquet file")
    parser.add_argument("--root", help="folder that relative media paths start from; each DATA file's by default")
    parser.add_argument(
        "--allow-root", action="append", default=[], metavar="DIR", help="refuse media outside; may be repeated"
    )
    parser.add_argument("--workers", type=int, default=4, help="samples scanned at once (default: 4)")
    parser.add_argument(
        "--place", choices=["threads", "processes", "ray"], default="threads", help="where they are (default: threads)"
    )
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="of a Ray cluster; by default it is started here")
    parser.add_argument(
        "--no-journal", action="store_true", help="scan all anew; else what FILE.journal knows is not scanned again"
    )
    parser.add_argument(
        "--on-bad-sample", choices=["raise", "skip"], default="raise", help="stop at the first, or leave them out"
    )
    parser.add_argument(
        "--train-on", choices=["assistant", "last_assistant"], default="assistant", help="turns that enter the loss"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    """Scan, write the table, and tell what was found.

    Raises:
        TrimtabError: the model, a setting, the dataset or (under ``raise``) a sample is bad.
    """
    if args.workers < 1:
        raise SettingsError(f"--workers {args.workers} must be at least 1")
    family, geometry = resolve_model(args)
    for data in args.data:
        if Path(data).resolve() == Path(args.out).resolve():
            raise SettingsError(f"--out {args.out} is the dataset itself; give the table a path of its own")
    if printable(args.out) != args.out:
        raise SettingsError(f"--out {printable(args.out)}: is no UTF-8, which Parquet files are named in; rename it")
    check_writable(args.out, replaced=True)
    from trimtab.loader.scan import Scanner
    from trimtab.loader.sources import open_dataset
    from trimtab.loader.sources.storage import check_root

    check_root("--root ", args.root)
    dataset = open_dataset(args.data, args.root, allowed_roots=args.allow_root)
    scanner = Scanner(tokenizer=load_tokenizer(args), family=family, geometry=geometry, train_on=args.train_on)
    started = time.perf_counter()
    with _progress() as progress:
        task = progress.add_task("scanning", total=len(dataset))
        result = scanner.scan(
            dataset,
            workers=args.workers,
            place=args.place,
            ray_address=args.ray_address,
            journal=None if args.no_journal else Path(f"{args.out}.journal"),
            on_bad_sample=args.on_bad_sample,
            advance=lambda: progress.advance(task),
        )
    write_table(result.table, args.out)
    summary = _summary(result, args.out, time.perf_counter() - started)
    if args.json:
        print(json.dumps(summary))
    else:
        _print(summary)
    return 0


def _summary(result: Any, out: str, seconds: float) -> dict[str, Any]:
    batch = result.table.batch()
    videos = int(batch.is_video.sum())
    return {
        "out": out,
        "samples": len(batch),
        "bad_samples": [asdict(bad) for bad in result.bad],
        "samples_without_loss": result.without_loss,
        "images": batch.num_visuals - videos,
        "videos": videos,
        "text_tokens": int(batch.text_tokens.sum()),
        "visual_tokens": int(batch.visual_tokens.sum()),
        "loss_tokens": int(batch.loss_tokens.sum()),
        "longest_sample_tokens": int(batch.tokens.max()),
        "seconds": round(seconds, 3),
        "geometry": asdict(result.table.geometry),
    }


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"{number_of(summary['samples'], 'sample')} in {escape(printable(summary['out'], console.encoding))}",
        soft_wrap=True,
    )
    table = Table(show_header=False)
    for name in ("images", "videos", "text_tokens", "visual_tokens", "loss_tokens", "longest_sample_tokens"):
        table.add_row(name.replace("_", " "), f"{summary[name]:,}")
    console.print(table)
    if summary["samples_without_loss"]:
        console.print(f"without a token that enters the loss: {number_of(summary['samples_without_loss'], 'sample')}")
    bad = summary["bad_samples"]
    if bad:
        console.print(f"{number_of(len(bad), 'bad sample')} left out:")
        for sample in bad[:_BAD_SHOWN]:
            told = printable(f"{sample['where']}: {sample['reason']}", console.encoding)
            console.print(f"  {told}", markup=False, soft_wrap=True)
        if len(bad) > _BAD_SHOWN:
            console.print(f"… and {len(bad) - _BAD_SHOWN} more; --json lists them all")


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(file=sys.stderr), transient=True)
