"""Writes docs/settings.md from the settings' dataclasses: python tools/settings_page.py.

Names, defaults and meanings are theirs; only what moves a setting is written here. A test holds the page to this.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from trimtab.planning.settings import PlanSettings
from trimtab.runtime.balancer_settings import BalancerSettings, EncoderBalanceSettings
from trimtab.simulate.scenario import Scenario
from trimtab.training.grpo.settings import GRPOSettings
from trimtab.training.settings import SFTSettings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

MOVES = {
    "samples_per_step": "the learning problem; more samples a rank leave a planner more to even out",
    "max_tokens_per_micro_batch": "device memory: `trimtab plan --cluster` says what fits with and "
    "without `recompute`, for `dtype=bfloat16`; in float32 about half of it does",
    "dtype": "`bfloat16` on GPUs",
    "recompute": "on where memory is short, for one forward more in each step",
    "checkpoint_every": "how much work a lost machine may cost",
    "timeout_s": "the longest step, evaluation or first compilation of any rank",
    "optimizer.learning_rate": "the recipe; adapters (`lora.rank`) usually take about ten times that of full training",
    "balance.mode": "`observe` first: it says what balance would gain; `off` for the baseline",
    "balance.sync": "the trainer: where ranks wait for each other; `layer` for FSDP2",
    "balance.costs": "`analytic` where a run is too short to time packs first",
    "balance.refit_every": "lower where lengths change during a run; 0 where steps are few or times noisy",
    "balance.max_degree": "above 1 where single samples outweigh a rank's share: `trimtab plan` shows a floor above 1",
    "packing.method": "`best` where batches are padded or samples are small",
    "packing.tokens": "device memory; left to the data otherwise",
    "packing.samples_per_pack": "how many samples a device can hold",
    "packing.window": "lower where long and short samples have different gradients",
    "loader.mode": "`central` only to compare with",
    "loader.executor": "`ray` to decode on more machines than train",
    "loader.workers": "raise while `exposed_data_ms` is above 0 and cores are free",
    "loader.prefetch": "raise where steps differ much in decoding time; costs memory",
    "loader.cache_mb": "host memory; raise where replies or epochs decode the same media again",
    "loader.on_bad_sample": "`skip` for data nobody has gone through",
    "loader.item_timeout_s": "the longest video, on the slowest storage",
    "lora.rank": "above 0 where optimizer state does not fit",
    "rollout.replies": "the variance of rewards within a prompt",
    "rollout.max_reply_tokens": "the task; cut replies are counted in `cut_replies`",
    "rollout.prompts_at_once": "device memory during generation",
    "rollout.shared_share": "higher where reply lengths are hard to foresee; costs copies of embeddings",
    "rollout.engine": "`server` for a model larger than one device",
    "reward.timeout_s": "the reward function",
    "objective.aggregation": "what the recipe you follow uses: names of verl and TRL are in [GRPO](grpo.md)",
    "objective.kl_coefficient": "above 0 keeps the policy near the start, at one more forward",
    "PlanSettings.sync": "where ranks of the host meet",
    "PlanSettings.equal_counts": "on where the host demands it: verl's dispatch, most GRPO losses",
    "PlanSettings.max_degree": "8, a host, for `adaptive`; more where `trimtab plan` shows a floor above 1",
    "PlanSettings.locality_tolerance": "higher where links are slow",
    "Scenario.micro_batch_tokens": "what the job itself would run with; else what fits is taken",
    "Scenario.micro_batch_ms": "small models and short micro-batches, where launches count",
    "Scenario.overlap": "a measurement on the cluster",
    "Scenario.loading.ship_bandwidth": "a measurement of the controller; it decides what loading costs",
    "Scenario.rollout.mean_tokens": "the task",
    "Scenario.rollout.spread": "the task",
    "BalancerSettings.mode": "`observe` first",
    "BalancerSettings.threshold": "higher where links are slow and steps short",
    "BalancerSettings.uneven_ends": "`share` where datasets of ranks differ in length",
    "BalancerSettings.background": "on where `balance/planning_ms` shows, with a group of its own",
}
"""What moves a setting, by its dotted name, or by its class and name where it is no setting of `trimtab train`."""

HEAD = """# Settings

<!-- Written by tools/settings_page.py from the dataclasses; change those, or the notes there, and run it. -->

Settings of `trimtab train` are written `name=value`, nested ones with dots, or stand in a YAML file
(`--config FILE.yaml`); later ones win. `balance=off` is short for `balance.mode=off`, `packing=best` for
`packing.method=best`. An unknown name, a wrong kind of value or two settings that contradict each other end the command
with one line. What a run used is in its `config.yaml`.

"Moved by" names the reason to leave the default; without one there rarely is any.
"""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One row.

    Attributes:
        name: dotted.
        default: as written; empty where one must be given.
        meaning: from the docstring.
    """

    name: str
    default: str
    meaning: str


def settings_page() -> str:
    """The page as text."""
    sft = list(settings_of(SFTSettings))
    known = {setting.name for setting in sft}
    grpo = [setting for setting in settings_of(GRPOSettings) if setting.name not in known]
    parts = [
        HEAD,
        "## Every run: `trimtab train sft`, `trimtab train grpo`\n",
        _table(sft),
        "## Reinforcement: `trimtab train grpo`\n",
        "`name` is `grpo` here; `samples_per_step` counts prompts, and packing does not apply.\n",
        _table(grpo),
        "## The planner, in code: `PlanSettings`\n",
        _table(list(settings_of(PlanSettings)), "PlanSettings."),
        "## Balance in a loop of your own: `BalancerSettings`\n",
        "[Beside LoongForge's names](balancer.md#settings).\n",
        _table(list(settings_of(BalancerSettings, nested=False)), "BalancerSettings."),
        "## The vision encoder in a loop of your own: `EncoderBalanceSettings`\n",
        _table(list(settings_of(EncoderBalanceSettings)), "EncoderBalanceSettings."),
        "## A simulated job: `trimtab simulate`\n",
        "Written `name=value` behind the scenario, or in its YAML file, which must say `data` and `model`. "
        "[What is assumed, and where from](simulate.md#what-is-assumed).\n",
        _table(list(settings_of(Scenario)), "Scenario."),
    ]
    return "\n".join(parts)


def settings_of(kind: type, prefix: str = "", *, nested: bool = True) -> Iterator[Setting]:
    """Every setting of a dataclass, nested ones with dots."""
    hints, meanings = get_type_hints(kind), _meanings(kind)
    for field in dataclasses.fields(kind):
        of_field = hints[field.name]
        if nested and dataclasses.is_dataclass(of_field) and isinstance(of_field, type):
            yield from settings_of(of_field, f"{prefix}{field.name}.")
        else:
            yield Setting(prefix + field.name, _default(field), meanings.get(field.name, ""))


def _meanings(kind: type) -> dict[str, str]:
    """Descriptions of a dataclass's attributes, those it inherits too."""
    inherited = {} if kind.__base__ in (object, None) else _meanings(kind.__base__)  # type: ignore[arg-type]
    _, _, listed = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    entries = re.split(r"^    (?=\w)", listed, flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        names, _, text = entry.partition(":")
        found.update(dict.fromkeys((name.strip() for name in names.split(",")), " ".join(text.split())))
    return {**inherited, **found}


def _default(field: Any) -> str:
    if field.default is not dataclasses.MISSING:
        return _written(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _written(field.default_factory())
    return ""


def _written(value: Any) -> str:
    """A default as a user would write it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = {name: one for name, one in shown.items() if one != getattr(type(value)(), name)}
        return f"`{type(value).__name__}({', '.join(f'{name}={one}' for name, one in changed.items())})`"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"`[{','.join(map(str, value))}]`"
    return f"`{value}`"


def _table(settings: list[Setting], prefix: str = "") -> str:
    rows = ["| setting | default | meaning, and what moves it |", "|---|---|---|"]
    for setting in settings:
        moves = f" *Moved by:* {MOVES[prefix + setting.name]}." if prefix + setting.name in MOVES else ""
        default = "(give one)" if setting.default in ("", "``") else setting.default
        meaning = setting.meaning.replace("|", "\\|")
        rows.append(f"| `{setting.name}` | {default} | {meaning}{moves} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(f"{PAGE} written")
