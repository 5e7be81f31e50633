"""``trimtab train sft``: trains on the ranks of torchrun, or on ranks it starts itself."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.cli.settings_parser import parse_settings
from trimtab.errors import SettingsError

USAGE = """usage: trimtab train sft [--config FILE.yaml] [setting=value ...]

Settings are written name=value or --name=value, nested ones with dots: balance.mode=off loader.mode=central.
`trimtab train sft --help` lists them all. Under torchrun the command uses its ranks;
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
    if loop != "sft":
        raise SettingsError(f"trimtab train {loop}: no such training loop; choose sft")
    from trimtab.training.launch import launch
    from trimtab.training.settings import SFTSettings
    from trimtab.training.sft import train

    return launch(train, parse_settings(SFTSettings, rest, command="trimtab train sft"))
