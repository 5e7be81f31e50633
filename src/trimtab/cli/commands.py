"""Which commands there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``trimtab``.

    Attributes:
        name: as typed.
        module: its file under ``trimtab.cli``. It has ``add_arguments(parser)`` and ``run(args) -> int``.
        help: one line.
        own_parser: the module parses its arguments itself: it has only ``run(arguments) -> int``.
    """

    name: str
    module: str
    help: str
    own_parser: bool = False


COMMANDS = (
    Command("demo", "demo", "train a small model on generated images and videos, balanced and not, and compare"),
    Command("scan", "scan", "read a dataset's sizes from file headers into a metadata table"),
    Command("plan", "plan", "compare strategies on a metadata table, in seconds, without loading a model"),
    Command("pack", "pack", "pack samples into balanced mini-batches, with a certificate"),
    Command("stages", "stages", "cut a model into pipeline stages and choose which layers recompute, in seconds"),
    Command("simulate", "simulate", "predict a job's step on a described cluster, phase by phase", own_parser=True),
    Command("fit", "fit", "fit the cost model to a run's recorded steps"),
    Command("train", "train", "train a model, every rank equally busy", own_parser=True),
    Command("report", "report", "show runs side by side, or what a command printed with --json, as a page and tables"),
)
