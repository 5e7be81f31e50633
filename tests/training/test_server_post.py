"""What a rollout server may do wrong is tried again where that helps, bounded in time, and told."""

from __future__ import annotations

import time

import pytest
from tests.training.chat_server import chat_server

from trimtab.errors import SettingsError, TrainingError
from trimtab.training.grpo.server_post import post
from trimtab.training.grpo.settings import ServerSettings


@pytest.mark.parametrize("fault", ["busy", "cut off", "no http"])
def test_a_passing_fault_is_tried_again(fault: str) -> None:
    with chat_server() as server:
        server.faults = [fault]
        settings = ServerSettings(url=server.url, retries=1)
        assert post(settings, "/other", {}, "sample s") == {"success": True}


@pytest.mark.parametrize(
    ("fault", "said"),
    [("busy", "answered 503"), ("cut off", "the answer was cut off"), ("no http", "speaks no HTTP")],
)
def test_a_lasting_fault_is_told(fault: str, said: str) -> None:
    with chat_server() as server:
        server.faults = [fault] * 2
        with pytest.raises(TrainingError, match=said) as raised:
            post(ServerSettings(url=server.url, retries=1), "/other", {}, "sample s")
        assert "sample s" in str(raised.value)
        assert server.url in str(raised.value)


def test_a_server_that_drips_is_left_at_the_limit() -> None:
    with chat_server() as server:
        server.faults = ["drips"]
        began = time.monotonic()
        with pytest.raises(TrainingError, match=r"within rollout.server.timeout_s=0.5 s"):
            post(ServerSettings(url=server.url, timeout_s=0.5), "/other", {}, "sample s")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000/v1", "http://127.0.0.1:notaport/v1", "http://a host/v1", "ftp://h/v1", "http:///v1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"rollout.server.url"):
        ServerSettings(url=url)
