"""Simulates a step on a described cluster under each strategy. Loads no model and no torch."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import islice
from typing import NoReturn

from trimtab.cli.simulate_sweep import run_sweep
from trimtab.cli.simulate_tables import print_simulation
from trimtab.cli.simulated_job import DEFAULT_SWEEP, PIPELINE_SWEEP, SimulatedJob
from trimtab.cli.simulation_progress import SimulationProgress
from trimtab.errors import SettingsError
from trimtab.schema.output_file import check_writable, write_output
from trimtab.simulate.bundled import scenario_names
from trimtab.simulate.job import Job
from trimtab.simulate.run import Simulation, simulate
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.sweep import parse_sweep
from trimtab.simulate.swept_values import is_several
from trimtab.simulate.timeline import chrome_trace

_OPTIONS = ("--help", "--json", "--sweep", "--timeline")
_TAKES_A_WORD = ("--timeline",)
_LIST = "strategies"
_OPTION = re.compile(r"^--(?P<name>[A-Za-z][\w.-]*)(?P<rest>=.*)?$", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; see `{self.prog} --help`")


def run(arguments: Sequence[str]) -> int:
    """Simulate, print.

    Raises:
        TrimtabError: the scenario, a setting, the model, the cluster or the table is bad.
    """
    args, words = _parsed(arguments)
    maker = SimulatedJob(args.scenario, words)
    if args.timeline is not None:
        check_writable(args.timeline, read=[args.scenario, maker.data])
    swept = None if args.sweep is None else parse_sweep(args.sweep or maker.default_sweep())
    with SimulationProgress() as progress:
        job = maker.job({})
        if swept is not None:
            maker.check(swept)
        found = simulate(job, draw=args.timeline is not None, progress=lambda at: progress.update(f"simulating {at}"))
    if args.timeline is not None:
        write_output(args.timeline, json.dumps(chrome_trace(found.timelines)))
        print(f"wrote {args.timeline}; open it at https://ui.perfetto.dev", file=sys.stderr)
    if swept is None:
        _print(args.json, job, found)
        return 0
    return run_sweep(args.json, maker, job, found, swept)


def _print(as_json: bool, job: Job, found: Simulation) -> None:
    if as_json:
        print(json.dumps(found.to_json()))
        for name, reason in found.refused.items():
            print(f"{name} left out: {reason}", file=sys.stderr)
    else:
        print_simulation(job, found)


def _parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(
        prog="trimtab simulate",
        description=__doc__,
        epilog=_settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        help=f"a YAML file of settings, a metadata table (.parquet, .csv), or of: {', '.join(scenario_names())}",
    )
    parser.add_argument("settings", nargs="*", metavar="name=value", help="settings that win over the scenario's")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--timeline", metavar="FILE", help="write a trace of every step, for Perfetto")
    parser.add_argument(
        "--sweep",
        nargs="*",
        metavar="name=v,v",
        help=f"vary settings of the fastest strategy, and recommend; by default {' '.join(DEFAULT_SWEEP)}; "
        f"with stages {' '.join(PIPELINE_SWEEP)}; one value is no list: it is taken as a setting",
    )
    words, swept = _sweep_apart(_with_equals(arguments))
    if swept == []:
        _say_single_values([part for word in arguments for part in _of_sweep(word)])
    args, rest = parser.parse_known_args(words)
    _check_options(rest)
    args.sweep = swept
    return args, [*args.settings, *rest]


def _check_options(words: Sequence[str]) -> None:
    """Refuse what is nearly an option; settings with two dashes are left to the scenario."""
    for word in words:
        named = word.partition("=")[0]
        if near := difflib.get_close_matches(named, _OPTIONS, n=1, cutoff=0.8):
            raise SettingsError(f"unknown option {named}; did you mean {near[0]}?")


def _sweep_apart(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The other words, and those of ``--sweep``; None without it.

    Of the words behind it the lists of values are its own. One value is nothing to vary: a setting that happens to
    stand there; so may the scenario.
    """
    arguments = [part for word in arguments for part in _of_sweep(word)]
    if "--sweep" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--sweep")
    words, swept = list(arguments[:at]), []
    named = any(not word.startswith("-") and "=" not in word for word in words)
    behind = iter(word for word in arguments[at + 1 :] if word != "--sweep")
    for word in behind:
        name, equals, value = word.partition("=")
        setting = bool(equals and value) and (not is_several(value) or (name == _LIST and value.startswith("[")))
        if word in _TAKES_A_WORD:
            words += [word, *islice(behind, 1)]
        elif word.startswith("-") or setting:
            words.append(word)
        elif not equals and not named:
            words.append(word)
            named = True
        else:
            swept.append(word)
    return words, swept


def _say_single_values(arguments: Sequence[str]) -> None:
    """Nothing was listed behind ``--sweep``: what stands there may have been meant to be swept."""
    behind = arguments[arguments.index("--sweep") + 1 :]
    single = [word for word in behind if "=" in word and not word.startswith(("-", f"{_LIST}="))]
    for word in single:
        print(f"{word} has one value: taken as a setting, and the default settings are swept", file=sys.stderr)


def _of_sweep(word: str) -> list[str]:
    """``--sweep=name=1,2`` as two words."""
    option, equals, values = word.partition("=")
    return ["--sweep", values] if option == "--sweep" and equals else [word]


def _with_equals(arguments: Sequence[str]) -> list[str]:
    """``--batch-size 512`` as ``batch_size=512``, so that settings may be written like other commands' options."""
    known = {field.name for field in fields(Scenario)}
    words, rest = [], iter(arguments)
    for word in rest:
        option = _OPTION.match(word)
        name = "" if option is None else option["name"].replace("-", "_")
        if option is not None and name.partition(".")[0] in known:
            value = option["rest"] or "=" + next(rest, "")
            words.append(f"{name}{value}")
        else:
            words.append(word)
    return words


def _settings_help() -> str:
    """The settings with their meaning, from the scenario's own description."""
    described = (Scenario.__doc__ or "").partition("Attributes:")[2]
    return "settings of a scenario:\n" + described.rstrip()
