"""What a training command is told to train on: as far as the scenario knows it, else a word in capitals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trimtab.simulate.command_word import word
from trimtab.simulate.job import Job
from trimtab.simulate.rollout_command import SERVER, needs_server, server_words


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Settings every run needs.

    Attributes:
        model: the checkpoint's folder.
        data: dataset files.
        table: what a scan made of them.
        reward: the reward's function in reinforcement, else "".
        server: settings of the inference server that reinforcement of a large model needs.
        needs: what is missing, in one sentence, or "".
    """

    model: str
    data: tuple[str, ...]
    table: str
    reward: str
    server: tuple[str, ...]
    needs: str

    @staticmethod
    def of(job: Job) -> Inputs:
        """Of a simulated job: its checkpoint and scanned table where it has them."""
        scenario = job.scenario
        model = scenario.model if (Path(scenario.model) / "config.json").is_file() else "MODEL"
        scanned = job.table is not None and bool(job.table.files)
        table, data = (scenario.data, _files(job)) if scanned else ("TABLE", ("DATA",))
        reward = "FILE.py:NAME" if scenario.task == "grpo" else ""
        missing = {
            "the checkpoint's folder": (model, "MODEL"),
            "the dataset's files": (data[0], "DATA"),
            "the reward's function": (reward, "FILE.py:NAME"),
        }
        needs = [f"{capitals}, {what}" for what, (value, capitals) in missing.items() if value == capitals]
        needs += [f"{capitals}, {what}" for capitals, what in SERVER.items()] if needs_server(job) else []
        said = f"put in {'; '.join(needs)}" if needs else ""
        if not scanned:
            said += f"; {scenario.data} is no scanned table: `trimtab scan` the dataset first, its --out is TABLE"
        server, said = tuple(server_words(job)), said.removeprefix("; ")
        return Inputs(model=model, data=data, table=table, reward=reward, server=server, needs=said)

    def __str__(self) -> str:
        """The settings, as words of a command."""
        words = [f"model={self.model}", f"data=[{','.join(self.data)}]", f"table={self.table}"]
        words += [f"reward.function={self.reward}"] if self.reward else []
        words += self.server
        return " ".join(map(word, words))


def _files(job: Job) -> tuple[str, ...]:
    """Where the scanned files lie: beside the table, or where one is."""
    assert job.table is not None
    folder, found = Path(job.scenario.data).parent, []
    for file in job.table.files:
        there = [path for path in (folder / file.name, Path(file.name)) if path.is_file()]
        if not there or "," in str(there[0]):
            return ("DATA",)
        found.append(str(there[0]))
    return tuple(found)
