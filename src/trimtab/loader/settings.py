"""Settings of the loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trimtab.errors import SettingsError
from trimtab.schema.setting_checks import check_positive, check_whole


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """How samples reach the ranks.

    Attributes:
        mode: "shadow": every rank decodes what its plan gives it; "central": rank 0 decodes everything and ships
            tensors, as single-controller frameworks do.
        executor: where media is decoded: "local", processes of the ranks' machines; or "ray", actors of a Ray cluster.
        ray_address: of the cluster, e.g. "auto" or "10.0.0.1:6379"; by default Ray is started within rank 0.
        workers: decode processes for each rank; ranks of one machine (of the cluster, on Ray) share theirs. "central"
            gives rank 0 those of all ranks.
        prefetch: steps prepared ahead of the one that computes.
        cache_mb: decoded media held for each rank, in MiB, shared likewise; what the current step needs may exceed it.
        on_bad_sample: "raise" ends the run; "skip" trains on with the sample's loss weight 0 and lists it.
        allowed_roots: folders and URLs the dataset's media must lie in; anywhere by default.
        item_timeout_s: longest time one image or run of frames may take to decode.
    """

    mode: Literal["shadow", "central"] = "shadow"
    executor: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    workers: int = 1
    prefetch: int = 2
    cache_mb: int = 256
    on_bad_sample: Literal["raise", "skip"] = "raise"
    allowed_roots: tuple[str, ...] = ()
    item_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SettingsError: a number is out of range.
        """
        for name, least in (("workers", 1), ("prefetch", 1), ("cache_mb", 0)):
            check_whole(f"loader.{name}", getattr(self, name), least)
        if self.ray_address is not None and self.executor != "ray":
            raise SettingsError(f"loader.ray_address={self.ray_address} needs loader.executor=ray")
        check_positive("loader.item_timeout_s", self.item_timeout_s)
