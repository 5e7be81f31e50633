"""Packs for a plain PyTorch ``DataLoader``: a batch sampler, and padding packs without loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from trimtab.errors import LoaderError, SettingsError
from trimtab.loader.pack_sampler import PackSampler
from trimtab.loader.pack_step import PackStep

IGNORED_LABEL = -100


class ZeroLossRow(int):
    """Row of a padding pack: a plain index to a dataset, and a sign that its sample must not enter the loss."""


class PackBatchSampler:
    """Yields the rows of one pack at a time: ``DataLoader(dataset, batch_sampler=PackBatchSampler(...))``.

    Iterating goes through the rest of an epoch; iterating again goes through the next. All ranks yield equally many
    batches. Rows of padding packs are ``ZeroLossRow``: wrap the dataset in ``ZeroLossDataset``, or they train twice.
    """

    def __init__(self, sampler: PackSampler, *, rank: int | None) -> None:
        """Yield the packs of ``rank``.

        Args:
            sampler: deals packs to all ranks.
            rank: whose packs; None: those of all ranks in turn, for frameworks that themselves give batch b to rank
                ``b % ranks`` (accelerate).

        Raises:
            SettingsError: there is no such rank.
        """
        if rank is not None and not 0 <= rank < sampler.ranks:
            raise SettingsError(f"rank={rank} must lie from 0 to {sampler.ranks - 1}")
        self._sampler, self._rank = sampler, rank
        self._iterated = 0
        self._batches_of_step = 0

    @property
    def sampler(self) -> PackSampler:
        """The sampler that deals packs; it also holds the state."""
        return self._sampler

    def __iter__(self) -> Iterator[list[int]]:
        begin = self._begin()
        end = self._sampler.end_of_epoch(begin)
        for number in range(begin, end):
            yield from batches_of(self._sampler.step(number), self._ranks())
        self._iterated = end

    def __len__(self) -> int:
        """Batches that iterating now yields, exactly."""
        begin = self._begin()
        steps = self._sampler.end_of_epoch(begin) - begin
        return steps * self._sampler.micro_batches * len(self._ranks())

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless iterating is to go on in it anyway."""
        if epoch != self._sampler.epoch_of(self._begin()):
            self._sampler.start_epoch(epoch)
            self._iterated = 0

    def consumed(self) -> None:
        """Note that one more batch of this rank has been trained on; a step counts once all its micro-batches have."""
        self._batches_of_step += 1
        if self._batches_of_step == self._sampler.micro_batches:
            self._batches_of_step = 0
            self._sampler.consumed(self._sampler.next_step)

    def state_dict(self) -> dict[str, Any]:
        """The steps consumed; whatever a loader fetched ahead is fetched again."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the steps consumed; see ``PackSampler.load_state_dict``."""
        self._sampler.load_state_dict(state)
        self._iterated = self._batches_of_step = 0

    def _begin(self) -> int:
        return max(self._sampler.next_step, self._iterated)

    def _ranks(self) -> range:
        return range(self._sampler.ranks) if self._rank is None else range(self._rank, self._rank + 1)


def batches_of(step: PackStep, ranks: Sequence[int]) -> Iterator[list[int]]:
    """Rows of a step's packs, micro-batch by micro-batch, those of padding packs as ``ZeroLossRow``."""
    for micro_batch in range(step.micro_batches):
        for rank in ranks:
            rows = step.pack(rank, micro_batch).tolist()
            yield [ZeroLossRow(row) for row in rows] if step.is_padding(rank, micro_batch) else rows


class _HearsEpochs(Protocol):
    def set_epoch(self, epoch: int) -> None: ...


class _Dataset(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


def ignore_labels(sample: Any) -> Any:
    """A copy of a sample (a mapping) whose ``labels`` are all -100, so that no token enters the loss.

    Raises:
        LoaderError: the sample has no ``labels``.
    """
    labels = sample.get("labels") if hasattr(sample, "get") else None
    if labels is None:
        raise LoaderError(
            "a padding pack's sample has no 'labels' to ignore; give ZeroLossDataset a function that takes loss away"
        )
    ignored = [IGNORED_LABEL] * len(labels) if isinstance(labels, list) else labels * 0 + IGNORED_LABEL
    return {**sample, "labels": ignored}


class ZeroLossDataset:
    """A map-style dataset whose samples lose their loss where a padding pack asks for them."""

    def __init__(
        self,
        dataset: _Dataset,
        *,
        without_loss: Callable[[Any], Any] = ignore_labels,
        batches: _HearsEpochs | None = None,
    ) -> None:
        """Wrap a dataset.

        Args:
            dataset: the samples, by row of the table.
            without_loss: the sample with loss weight 0.
            batches: told the epoch where a trainer tells only the dataset (Hugging Face Trainer).
        """
        self._dataset, self._without_loss, self._batches = dataset, without_loss, batches

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> Any:
        if row >= len(self._dataset):
            raise LoaderError(
                f"the packs ask for row {int(row)}, but the dataset has {len(self._dataset)} samples; pack the table "
                "that was made from this dataset"
            )
        sample = self._dataset[int(row)]
        return self._without_loss(sample) if isinstance(row, ZeroLossRow) else sample

    def __getstate__(self) -> dict[str, Any]:
        """Without the batch sampler, which workers do not need."""
        return {**self.__dict__, "_batches": None}

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the batch sampler."""
        if self._batches is not None:
            self._batches.set_epoch(epoch)
