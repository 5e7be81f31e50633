"""The job that `trimtab simulate` was told of, and what it becomes with some settings changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trimtab.cli.architecture_argument import check_made_for, load_architecture
from trimtab.cli.settings_file import words_of_file
from trimtab.cli.settings_parser import check_kinds, parse_settings
from trimtab.cost.architecture import Architecture
from trimtab.cost.cluster import load_cluster
from trimtab.errors import SettingsError
from trimtab.schema.near_names import did_you_mean
from trimtab.schema.table import MetadataTable
from trimtab.schema.table_file import read_table
from trimtab.simulate.bundled import scenario_file, scenario_names
from trimtab.simulate.job import Job, largest_adaptive_degree
from trimtab.simulate.pack_caps import check_packs_hold_every_sample
from trimtab.simulate.run import job_of
from trimtab.simulate.scenario import Scenario
from trimtab.simulate.sweep import ALIASES, Overrides, parse_sweep
from trimtab.simulate.workload import is_table, parts_of_mix

DEFAULT_SWEEP = (
    "max_degree=1,2,4,8",
    "pack_tokens=4096,16384,65536",
    "recompute=true,false",
    "loading.prefetch=1,2,4",
    "loading.workers_per_rank=4,8,12",
)
PIPELINE_SWEEP = (
    "pipeline.stages=2,4,8,16",
    "pipeline.pack_tokens=4096,8192,16384",
    "loading.prefetch=1,2,4",
)
_NEEDED = {"data": "a metadata table or a named data set", "model": "what is trained on it"}
_CAPS_OF_PACKS = ("pipeline.pack_tokens", "pipeline.pack_tiles")
_FILES = ("data", "model", "cluster")
_DEGREE = "max_degree"
_COMMAND = "trimtab simulate"


class SimulatedJob:
    """The scenario as given, and what it becomes with some settings changed; files are read once."""

    def __init__(self, scenario: str, words: Sequence[str]) -> None:
        """Find the scenario.

        Args:
            scenario: a metadata table, a YAML file of settings, or the name of a bundled one.
            words: settings that win over it.

        Raises:
            SettingsError: there is no such scenario, or neither it nor the words say what is simulated.
        """
        if is_table(scenario) and not scenario.endswith((".yaml", ".yml")):
            if not any(word.startswith("model=") for word in words):
                raise SettingsError(f"{scenario} is a metadata table: say what is trained on it, model=NAME, and where")
            self._words = [f"data={scenario}", f"name={Path(scenario).stem}", *words]
        else:
            file = scenario_file(scenario) or Path(scenario)
            if not file.is_file():
                known, near = ", ".join(scenario_names()), did_you_mean(scenario, scenario_names())
                raise SettingsError(f"scenario {scenario!r}: neither a file nor bundled; {near}there are: {known}")
            in_file = _by_name(words_of_file(str(file)))
            _check_named(scenario, {**in_file, **_by_name(words)})
            self._words = ["--config", str(file), *_beside(file.parent, in_file), *words]
        self._tables: dict[str, MetadataTable] = {}
        self._architectures: dict[str, Architecture] = {}

    @property
    def data(self) -> str:
        """The table or named data set."""
        return self._scenario({}).data

    def job(self, changed: Overrides) -> Job:
        """The job with settings changed."""
        scenario = self._scenario(changed)
        architecture = self._architecture(scenario.model)
        if not is_table(scenario.data):
            return job_of(scenario, architecture)
        table = self._table(scenario.data)
        check_made_for(table, architecture)
        return job_of(scenario, architecture, table)

    def default_sweep(self) -> list[str]:
        """Settings worth a look for this kind of job, with those of their values that suit it."""
        words = PIPELINE_SWEEP if self._scenario({}).pipeline.stages else DEFAULT_SWEEP
        legal = []
        for name, values in parse_sweep(words).items():
            fitting = self.acting({name: [value for value in values if self._suits(name, value)]})[name]
            legal += [f"{name}={','.join(fitting)}"] if fitting else []
        return legal

    def acting(self, swept: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """The values swept as they act, each once: a degree is the next that heads and ranks allow."""
        return {
            name: list(dict.fromkeys(self._degree(value) if name == _DEGREE else value for value in values))
            for name, values in swept.items()
        }

    def _degree(self, value: str) -> str:
        """What a largest degree acts as, or itself where it cannot be."""
        try:
            scenario = self._scenario({_DEGREE: value})
        except SettingsError:
            return value
        return str(largest_adaptive_degree(scenario, self._architecture(scenario.model)))

    def is_given(self, name: str, value: str) -> bool:
        """Whether a setting has this value, or acts so, without being changed."""
        if name == _DEGREE and self._degree(value) == self._degree(str(self._scenario({}).max_degree)):
            return True
        return self._scenario({name: value}) == self._scenario({})

    def check(self, swept: Mapping[str, Sequence[str]]) -> None:
        """Refuse, before long work, what is no setting, no value of its kind or the name of nothing.

        Raises:
            TrimtabError: it is none; values that are, and go with nothing else, are for the sweep to tell.
        """
        find: dict[str, Callable[[str], object]] = {
            "data": lambda value: self._table(value) if is_table(value) else parts_of_mix(value),
            "model": self._architecture,
            "cluster": load_cluster,
        }
        for name, values in swept.items():
            for value in values:
                check_kinds(Scenario, self._words_with({name: value}), command=_COMMAND)
                if name in find:
                    find[name](value)

    def _architecture(self, model: str) -> Architecture:
        if model not in self._architectures:
            self._architectures[model] = load_architecture(model)
        return self._architectures[model]

    def _table(self, data: str) -> MetadataTable:
        if data not in self._tables:
            self._tables[data] = read_table(data)
        return self._tables[data]

    def _suits(self, name: str, value: str) -> bool:
        try:
            self._scenario({name: value})
            if name in _CAPS_OF_PACKS:
                check_packs_hold_every_sample(self.job({name: value}))
        except SettingsError:
            return False
        return True

    def _scenario(self, changed: Overrides) -> Scenario:
        return parse_settings(Scenario, self._words_with(changed), command=_COMMAND)

    def _words_with(self, changed: Overrides) -> list[str]:
        words = [*self._words, *(f"{name}={value}" for name, value in changed.items())]
        named = [word.split("=", 1) if "=" in word and not word.startswith("-") else [word] for word in words]
        return ["=".join([ALIASES.get(parts[0], parts[0]), *parts[1:]]) for parts in named]


def _by_name(words: Sequence[str]) -> dict[str, str]:
    parts = (word.removeprefix("--").partition("=") for word in words)
    return {name: value for name, equals, value in parts if equals}


def _check_named(scenario: str, settings: Mapping[str, str]) -> None:
    """A default would be somebody else's job."""
    if missing := [name for name in _NEEDED if not settings.get(name)]:
        meant = "; ".join(f"{name}: {_NEEDED[name]}" for name in missing)
        raise SettingsError(f"scenario {scenario} names no {' and no '.join(missing)}; write ({meant})")


def _beside(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Settings that name a file beside the scenario's, with its path."""
    for name in _FILES:
        path = folder / settings.get(name, "")
        if path.is_file() or (name in settings and (path / "config.json").is_file()):
            yield f"{name}={path}"
