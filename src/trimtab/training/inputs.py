"""Whether a run's files are there, found out before ranks are started."""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import MetadataError
from trimtab.families.checkpoint import read_checkpoint
from trimtab.loader.sources.storage import check_root, is_url, size_of
from trimtab.training.settings import SFTSettings


def check_inputs(settings: SFTSettings) -> None:
    """Look for the model's configuration, the tables and the dataset files; URLs are left to the ranks.

    Raises:
        UnknownModelError: the model's folder holds no configuration.
        MetadataError: a table is missing.
        DatasetError: a dataset file or the media's folder is missing.
    """
    read_checkpoint(settings.model)
    for table in (settings.table, settings.evaluation.table):
        if table is not None and not table.is_file():
            raise MetadataError(f"{table}: no such file; write it with `trimtab scan`")
    check_root("root=", settings.root)
    check_root("evaluation.root=", settings.evaluation.root)
    for location in map(str, (*settings.data, *settings.evaluation.data)):
        if not is_url(location) and not Path(location).is_dir():
            size_of(location)
