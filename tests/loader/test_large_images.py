"""Images above half of Pillow's limit: ours decides, and Pillow's warning, which names no file, is not shown."""

from __future__ import annotations

import io
import json
import warnings
import zlib
from pathlib import Path

import pytest
from PIL import Image
from tests.chat_tokenizer import chat_tokenizer
from tests.loader.media_cases import GEOMETRY

from trimtab.families.registry import family_for
from trimtab.loader.executors.decode_task import DecodeTask
from trimtab.loader.executors.decode_worker import decode
from trimtab.loader.scan import Scanner
from trimtab.loader.scan_workers import Place
from trimtab.loader.sources import open_dataset
from trimtab.media.probe import probe_image
from trimtab.media.visual import describe


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A PNG whose header says 100 megapixels, and which holds none."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    content = bytearray(buffer.getvalue())
    content[16:24] = (10_000).to_bytes(4) * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    (tmp_path / "large.png").write_bytes(content)
    return tmp_path / "large.png"


def of_pillow(shown: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [one for one in shown if issubclass(one.category, Image.DecompressionBombWarning)]


def test_pillow_warns_of_it(large: Path) -> None:
    with pytest.warns(Image.DecompressionBombWarning):
        assert probe_image(str(large)).width == 10_000


@pytest.mark.parametrize("place", ["threads", "processes"])
def test_a_scan_does_not_show_the_warning(large: Path, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "<image>Which?"}, {"role": "assistant", "content": "Red."}]
    data = large.with_name("d.jsonl")
    data.write_text(json.dumps({"messages": messages, "images": ["large.png"]}) + "\n")
    scanner = Scanner(tokenizer=chat_tokenizer(), family=family_for("qwen2_5_vl"), geometry=GEOMETRY)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert len(scanner.scan(open_dataset(data), workers=1, place=place).table) == 1
    assert not of_pillow(shown)
    assert "DecompressionBomb" not in capfd.readouterr().err


def test_a_decode_process_does_not_show_the_warning(large: Path) -> None:
    with pytest.warns(Image.DecompressionBombWarning):
        visual = describe("image", str(large), GEOMETRY)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        found = decode(DecodeTask(visual=visual, geometry=GEOMETRY, frame_start=0, frame_stop=1))
    assert "large.png: cannot be decoded" in str(found)
    assert not of_pillow(shown)
