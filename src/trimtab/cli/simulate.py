"""Simulates a step on a described cluster under each strategy. Loads no model and no torch."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from trimtab.cli.architecture_argument import check_made_for, load_architecture
from trimtab.cli.settings_parser import parse_settings
from trimtab.cli.simulate_tables import print_recommendation, print_simulation, print_sweep
from trimtab.cost.architecture import Architecture
from trimtab.errors import SettingsError
from trimtab.schema.table import MetadataTable
from trimtab.schema.table_file import check_writable, read_table
from trimtab.simulate.bundled import scenario_file, scenario_names
from trimtab.simulate.doubt import doubts
from trimtab.simulate.how_to_run import how_to_run
from trimtab.simulate.job import Job
from trimtab.simulate.run import Simulation, StrategyResult, job_of, simulate
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.sweep import ALIASES, Overrides, fastest, parse_sweep, recommend, sweep
from trimtab.simulate.timeline import chrome_trace
from trimtab.simulate.workload import is_table

_DEFAULT_SWEEP = (
    "max_degree=1,2,4,8",
    "pack_tokens=4096,16384,65536",
    "recompute=true,false",
    "loading.prefetch=1,2,4",
    "loading.workers_per_rank=4,8,12",
)
_PIPELINE_SWEEP = (
    "pipeline.stages=2,4,8,16",
    "pipeline.pack_tokens=4096,8192,16384",
    "loading.prefetch=1,2,4",
)
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
    maker = _JobMaker(args.scenario, words)
    if args.timeline is not None:
        check_writable(args.timeline)
    swept = None if args.sweep is None else parse_sweep(args.sweep or maker.default_sweep())
    console = Console(stderr=True)
    with console.status("reading") as status:
        job = maker.job({})
        if swept is not None:
            maker.check(swept)
        found = simulate(job, draw=args.timeline is not None, progress=lambda name: status.update(f"simulating {name}"))
    if args.timeline is not None:
        Path(args.timeline).write_text(json.dumps(chrome_trace(found.timelines)), encoding="utf-8")
        print(f"wrote {args.timeline}; open it at https://ui.perfetto.dev", file=sys.stderr)
    if swept is None:
        _print(args.json, job, found)
        return 0
    return _sweep(args.json, maker, job, found, swept)


def _sweep(as_json: bool, maker: _JobMaker, job: Job, found: Simulation, swept: dict[str, list[str]]) -> int:
    base = fastest(found)
    with Console(stderr=True).status("sweeping") as status:

        def at(changed: Overrides) -> StrategyResult:
            status.update("sweeping " + " ".join(f"{name}={value}" for name, value in changed.items()))
            return simulate(maker.job({**changed, "strategies": f"[{base.name}]"})).strategies[0]

        points = sweep(swept, at)
        best = recommend(base, points, at)
        run, doubted = how_to_run(maker.job(best.settings), best.strategy), doubts(found, best)
    if as_json:
        listed = [point.to_json() for tried in points.values() for point in tried]
        print(json.dumps({**found.to_json(), "sweep": listed, "recommended": best.to_json(run, doubted)}))
        return 0
    print_simulation(job, found)
    print_sweep(base, points)
    print_recommendation(found, best, run, doubted)
    return 0


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
        help=f"vary settings of the fastest strategy, and recommend; by default {' '.join(_DEFAULT_SWEEP)}; "
        f"with stages {' '.join(_PIPELINE_SWEEP)}",
    )
    words, swept = _sweep_apart(_with_equals(arguments))
    args, rest = parser.parse_known_args(words)
    args.sweep = swept
    return args, [*args.settings, *rest]


def _sweep_apart(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The other words, and those of ``--sweep``; None without it.

    Of the words behind it the lists of values are its own. One value is nothing to vary: a setting that happens to
    stand there; so may the scenario.
    """
    if "--sweep" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--sweep")
    words, swept = list(arguments[:at]), []
    named = any(not word.startswith("-") and "=" not in word for word in words)
    for word in arguments[at + 1 :]:
        _, equals, value = word.partition("=")
        setting = bool(equals and value) and ("," not in value or value.startswith("["))
        if word.startswith("-") or setting:
            words.append(word)
        elif not equals and not named:
            words.append(word)
            named = True
        else:
            swept.append(word)
    return words, swept


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


class _JobMaker:
    """The scenario as given, and what it becomes with some settings changed; files are read once."""

    def __init__(self, scenario: str, words: list[str]) -> None:
        if is_table(scenario) and not scenario.endswith((".yaml", ".yml")):
            if not any(word.startswith("model=") for word in words):
                raise SettingsError(f"{scenario} is a metadata table: say what is trained on it, model=NAME, and where")
            self._words = [f"data={scenario}", f"name={Path(scenario).stem}", *words]
        else:
            file = scenario_file(scenario) or Path(scenario)
            if not file.is_file():
                known = ", ".join(scenario_names())
                raise SettingsError(f"scenario {scenario!r}: neither a file nor bundled; there are: {known}")
            self._words = ["--config", str(file), *words]
        self._tables: dict[str, MetadataTable] = {}
        self._architectures: dict[str, Architecture] = {}

    def job(self, changed: Overrides) -> Job:
        """The job with settings changed."""
        scenario = self._scenario(changed)
        if scenario.model not in self._architectures:
            self._architectures[scenario.model] = load_architecture(scenario.model)
        architecture = self._architectures[scenario.model]
        if not is_table(scenario.data):
            return job_of(scenario, architecture)
        if scenario.data not in self._tables:
            self._tables[scenario.data] = read_table(scenario.data)
        check_made_for(self._tables[scenario.data], architecture)
        return job_of(scenario, architecture, self._tables[scenario.data])

    def default_sweep(self) -> list[str]:
        """Settings worth a look for this kind of job, with those of their values that suit it."""
        words = _PIPELINE_SWEEP if self._scenario({}).pipeline.stages else _DEFAULT_SWEEP
        legal = []
        for name, values in parse_sweep(words).items():
            fitting = [value for value in values if self._suits(name, value)]
            legal += [f"{name}={','.join(fitting)}"] if fitting else []
        return legal

    def _suits(self, name: str, value: str) -> bool:
        try:
            self._scenario({name: value})
        except SettingsError:
            return False
        return True

    def check(self, swept: dict[str, list[str]]) -> None:
        """Refuse values the scenario would refuse, before long work."""
        for name, values in swept.items():
            for value in values:
                self._scenario({name: value})

    def _scenario(self, changed: Overrides) -> Scenario:
        words = [*self._words, *(f"{name}={value}" for name, value in changed.items())]
        named = [word.split("=", 1) if "=" in word and not word.startswith("-") else [word] for word in words]
        renamed = ["=".join([ALIASES.get(parts[0], parts[0]), *parts[1:]]) for parts in named]
        return parse_settings(Scenario, renamed, command="trimtab simulate")
