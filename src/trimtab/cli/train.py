"""``trimtab train sft|grpo``: trains on the ranks of torchrun, or on ranks it starts itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from trimtab.cli.settings_parser import parse_settings
from trimtab.errors import SettingsError

if TYPE_CHECKING:
    from trimtab.training.settings import SFTSettings

USAGE = """usage: trimtab train {sft,grpo} [--config FILE.yaml] [setting=value ...]

  sft   supervised fine-tuning
  grpo  reinforcement: replies sampled, scored by reward.function=FILE.py:FUNCTION, and learned from

Settings are written name=value or --name=value, nested ones with dots: balance.mode=off loader.mode=central.
`trimtab train sft --help` and `trimtab train grpo --help` list them all. Under torchrun the command uses its ranks;
alone it starts `ranks` of them."""


def run(arguments: Sequence[str]) -> int:
    """Parse the settings and train; returns the exit code.

    Raises:
        TrimtabError: bad settings, bad input or a failed rank.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    loop, *rest = arguments
    command = f"trimtab train {loop}"
    if loop not in ("sft", "grpo"):
        raise SettingsError(f"{command}: no such training loop; choose sft or grpo")
    if "RANK" in os.environ:  # torchrun's: waiting for its peers it could not answer a signal in words
        return _train(loop, rest, command)
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        return _train(loop, rest, command)
    except _Terminated:
        print("trimtab: ended by SIGTERM before the ranks were started", file=sys.stderr)
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Terminated(BaseException):
    """SIGTERM while modules load and files are looked at, which takes seconds; ranks hear it later."""


def _terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _train(loop: str, rest: Sequence[str], command: str) -> int:
    from trimtab.training.inputs import check_inputs
    from trimtab.training.launch import launch

    settings: SFTSettings
    if loop == "grpo":
        from trimtab.training.grpo.run import train_grpo as train
        from trimtab.training.grpo.settings import GRPOSettings

        settings = parse_settings(GRPOSettings, rest, command=command)
        settings.reward.check_file()
    else:
        from trimtab.training.settings import SFTSettings
        from trimtab.training.sft import train

        settings = parse_settings(SFTSettings, rest, command=command)
    check_inputs(settings)
    return launch(train, settings)
