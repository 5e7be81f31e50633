"""Builds a report from what `trimtab report` was given: folders of runs, and output of other commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trimtab.report.documents import document_group
from trimtab.report.json_file import read_json_object
from trimtab.report.run import Run, find_runs, read_run
from trimtab.report.run_group import BASELINE, group_json, run_group
from trimtab.report.sections import Group

PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class RunSet:
    """Runs shown side by side.

    Attributes:
        title: what they have in common.
        runs: at least one; names differ.
    """

    title: str
    runs: list[Run]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was read.

    Attributes:
        title: of the page.
        sets: runs, those side by side together.
        documents: output of other commands, by file.
        document_groups: the same as groups of the page.
        default_page: where the page goes if nobody says otherwise.
    """

    title: str
    sets: list[RunSet]
    documents: dict[str, dict[str, Any]]
    document_groups: list[Group]
    default_page: Path

    @cached_property
    def groups(self) -> list[Group]:
        """Everything, as groups of the page."""
        return [*(run_group(one.title, one.runs) for one in self.sets), *self.document_groups]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready figures."""
        groups = [group_json(one.title, one.runs) for one in self.sets]
        return {"groups": groups, **({"documents": self.documents} if self.documents else {})}


def build_report(paths: Sequence[Path]) -> Report:
    """Read folders and files.

    One folder gives a set for each folder of variants in it; the runs of several folders are one set.

    Args:
        paths: at least one; a folder of a run or of its variants, or a file of JSON.

    Raises:
        MetadataError: a path holds no run and is no output of a command, or a file is broken.
    """
    files = [path for path in paths if path.is_file()]
    folders = [path for path in paths if path not in files]
    documents = {str(path): read_json_object(path) for path in files}
    groups = [document_group(Path(name), document) for name, document in documents.items()]
    found = {folder: find_runs(folder) for folder in folders}
    first = paths[0]
    return Report(
        title="trimtab report: " + ", ".join(dict.fromkeys(_name(path) for path in paths)),
        sets=_sets_of_one(*next(iter(found.items()))) if len(found) == 1 else _side_by_side(found),
        documents=documents,
        document_groups=groups,
        default_page=first.with_name(f"{first.stem}.{PAGE}") if first in files else first / PAGE,
    )


def _sets_of_one(root: Path, folders: Sequence[Path]) -> list[RunSet]:
    """A set for each folder that holds variants; comparisons before single runs."""
    if folders[0] == root:
        return [RunSet(title=_name(root), runs=[read_run(root, _name(root))])]
    sets = []
    for parent in sorted({folder.parent for folder in folders}):
        runs = [read_run(folder, folder.name) for folder in folders if folder.parent == parent]
        title = " / ".join((_name(root), *parent.relative_to(root).parts))
        sets.append(RunSet(title=title, runs=sorted(runs, key=lambda run: (run.name != BASELINE, run.name))))
    return sorted(sets, key=lambda one: len(one.runs) == 1)


def _side_by_side(found: dict[Path, list[Path]]) -> list[RunSet]:
    """All runs of several folders as one set, named by as much of their paths as tells them apart."""
    folders = list(dict.fromkeys(folder.resolve() for several in found.values() for folder in several))
    if not folders:
        return []
    deepest = max(len(folder.parts) for folder in folders)
    names = next(
        names
        for depth in range(1, deepest + 1)
        if len(set(names := ["/".join(folder.parts[-depth:]) for folder in folders])) == len(folders)
    )
    runs = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    return [RunSet(title=f"{len(runs)} runs side by side", runs=runs)]


def _name(path: Path) -> str:
    return path.resolve().name or str(path)
