from pathlib import Path

import pytest

from trimtab.demo.dataset import DemoDataset, write_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoDataset:
    """A small dataset with every kind of question."""
    return write_demo(tmp_path_factory.mktemp("demo"), seed=0, train=104, held_out=39, show_progress=False)


@pytest.fixture(scope="session")
def folder(demo: DemoDataset) -> Path:
    return demo.train.parent
