"""Where commands may write: devices and pipes too, unless a file is put in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trimtab.errors import SettingsError
from trimtab.schema.metadata import SampleMetadata
from trimtab.schema.output_file import check_writable, write_output
from trimtab.schema.table import MetadataTable
from trimtab.schema.table_file import write_table


def test_a_pipe_beside_which_no_file_can_be_made_takes_output() -> None:
    reader, writer = os.pipe()
    path = f"/proc/self/fd/{writer}"
    check_writable(path)
    write_output(path, "a trace")
    assert os.read(reader, 20) == b"a trace"
    os.close(reader)
    os.close(writer)


def test_a_device_takes_output() -> None:
    write_output("/dev/null", "a trace")


def test_a_table_is_never_put_in_a_pipes_place(tmp_path: Path) -> None:
    pipe = tmp_path / "t.parquet"
    os.mkfifo(pipe)
    sample = SampleMetadata(sample_id="a", text_tokens=9, loss_tokens=3, loss_weight=1.0, visuals=())
    with pytest.raises(
        SettingsError, match=r"cannot be written \(it is no file but a device or pipe\); choose another"
    ):
        write_table(MetadataTable.from_samples([sample]), pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
