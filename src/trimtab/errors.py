"""Every error trimtab raises on purpose.

TrimtabError
├── SettingsError (ValueError)            a setting is unknown, of the wrong kind, or contradicts another
├── MetadataError (ValueError)            a metadata table or batch is malformed
├── DatasetError (ValueError)             a dataset file cannot be read in any form trimtab knows
├── MediaError (ValueError)               an image or video cannot be probed or decoded
├── UnknownModelError (ValueError)        no family matches the model
├── PlanningError (RuntimeError)
│   ├── InfeasibleError                   no legal plan exists; names the sample and the tightest limit
│   └── InvalidPlanError                  a plan breaks an invariant: a defect of trimtab
├── RankDisagreementError (RuntimeError)  ranks hold different plans, settings or data
├── LoaderError (RuntimeError)            a sample could not be loaded
├── TrainingError (RuntimeError)          a training run cannot go on
└── CheckpointError (RuntimeError)        a checkpoint cannot be written or read

Messages name the sample, file or rank, the value found, the limit, and the remedy. The command line prints
them as one line and exits with 2.
"""


class TrimtabError(Exception):
    """Base of all errors trimtab raises on purpose."""


class SettingsError(TrimtabError, ValueError):
    """A setting is unknown, of the wrong kind, or contradicts another."""


class MetadataError(TrimtabError, ValueError):
    """A metadata table or batch is malformed.

    Attributes:
        row: of the table, counted from 0, or None where it is no single one's fault.
    """

    def __init__(self, message: str = "", *, row: int | None = None) -> None:
        """Name what is wrong."""
        super().__init__(message)
        self.row = row


class DatasetError(TrimtabError, ValueError):
    """A dataset file cannot be read in any form trimtab knows."""


class MediaError(TrimtabError, ValueError):
    """An image or video cannot be probed or decoded."""


class UnknownModelError(TrimtabError, ValueError):
    """No family matches the model."""


class PlanningError(TrimtabError, RuntimeError):
    """A plan could not be made."""


class InfeasibleError(PlanningError):
    """No legal plan exists; the message names the sample and the tightest limit.

    Attributes:
        too_long: name and tokens of the sample that exceeds a cap, and the largest degree it may have; else None.
    """

    def __init__(self, message: str = "", *, too_long: tuple[str, int, int] | None = None) -> None:
        """Name what is infeasible."""
        super().__init__(message)
        self.too_long = too_long


class InvalidPlanError(PlanningError):
    """A plan breaks an invariant, which is a defect of trimtab."""


class RankDisagreementError(TrimtabError, RuntimeError):
    """Ranks hold different plans, settings or data."""


class LoaderError(TrimtabError, RuntimeError):
    """A sample could not be loaded."""


class TrainingError(TrimtabError, RuntimeError):
    """A training run cannot go on."""


class CheckpointError(TrimtabError, RuntimeError):
    """A checkpoint cannot be written or read."""
