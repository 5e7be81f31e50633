"""Which command printed a JSON object, told by the keys it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import MetadataError
from trimtab.report.documents.benchmark import benchmark_sections
from trimtab.report.documents.comparison import comparison_sections, groups_sections
from trimtab.report.documents.fit import fit_sections
from trimtab.report.documents.pack import pack_sections
from trimtab.report.documents.plan import plan_sections
from trimtab.report.documents.scan import scan_sections
from trimtab.report.documents.simulate import simulate_sections
from trimtab.report.documents.stages import stages_sections
from trimtab.report.sections import Group, Section


@dataclass(frozen=True)
class Kind:
    """A form of output.

    Attributes:
        command: that prints it.
        keys: by which it is known.
        sections: what the page says of it.
        filled: a key whose value is what the page is about, or "".
    """

    command: str
    keys: frozenset[str]
    sections: Callable[[dict[str, Any]], Sequence[Section]]
    filled: str = ""


KINDS = (
    Kind("trimtab simulate", frozenset({"simulated", "scenario", "strategies"}), simulate_sections, "strategies"),
    Kind("trimtab plan", frozenset({"ranks", "batch_size", "batches", "strategies"}), plan_sections, "strategies"),
    Kind("trimtab pack", frozenset({"method", "packs", "lower_bound", "dist_ratio"}), pack_sections),
    Kind("trimtab scan", frozenset({"samples", "images", "videos", "text_tokens"}), scan_sections),
    Kind("trimtab fit", frozenset({"a", "b", "c", "r_squared"}), fit_sections),
    Kind("trimtab stages", frozenset({"stages", "bounds", "predicted_step_ms", "peak_memory_gb"}), stages_sections),
    Kind("trimtab report", frozenset({"report", "groups"}), groups_sections),
    Kind("trimtab demo", frozenset({"balanced", "baseline", "speedup"}), comparison_sections),
    Kind("a benchmark", frozenset({"name", "machine", "date", "cases", "checks"}), benchmark_sections, "cases"),
)
"""In this order: the first whose keys are all there."""


def document_group(path: Path, document: dict[str, Any]) -> Group:
    """The group that shows a command's output.

    Raises:
        MetadataError: no command prints such an object, it holds nothing to show, or its values are not of the form
            that command prints.
    """
    kind = next((kind for kind in KINDS if kind.keys <= document.keys()), None)
    if kind is None:
        known = ", ".join(kind.command for kind in KINDS)
        raise MetadataError(f"{path}: is the output of no command report knows; give what --json printed of {known}")
    if kind.filled and not document[kind.filled]:
        raise MetadataError(
            f"{path}: {kind.command} printed no {kind.filled}, so there is nothing to show; run it again"
        )
    try:
        sections = list(kind.sections(document))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise MetadataError(
            f"{path}: has the keys of {kind.command} but not its values ({problem}); print it again with --json"
        ) from error
    return Group(title=f"{kind.command}: {path.name}", sections=sections)
