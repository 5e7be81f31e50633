"""A described cluster: devices, links, hosts. Read from a small YAML file or a bundled preset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from trimtab.cost.device import DeviceSpeed, ShareByLength
from trimtab.errors import SettingsError
from trimtab.schema.yaml_file import read_yaml

Part = TypeVar("Part")

_CLUSTERS = resources.files("trimtab.cost.presets") / "clusters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the ranks of one level. Bandwidths are bytes a second of one rank in one direction, as NCCL's busbw.

    Attributes:
        latency: seconds a collective takes with next to no data.
        all_to_all, all_gather, all_reduce: achieved bandwidth of each collective.
    """

    latency: float
    all_to_all: float
    all_gather: float
    all_reduce: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One node's host.

    Attributes:
        memory: bytes.
        cores: processor cores.
        decode_pixels: pixels a second that one core decodes from h264 video.
    """

    memory: float
    cores: int
    decode_pixels: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices.

    Attributes:
        name: how reports call it.
        ranks_per_node: devices in a node.
        device: speed of one device.
        device_memory: bytes of one device.
        decode_tokens: tokens a second that one device generates in rollout, or None where nobody measured it.
        memory_bandwidth: bytes a second one device reads from its memory, or None where it is not known.
        node: link between the ranks of a node.
        across: link of one rank to other nodes.
        host: one node's host.
        nodes: number of nodes, or None for as many as needed.
    """

    name: str
    ranks_per_node: int
    device: DeviceSpeed
    device_memory: float
    node: Link
    across: Link
    host: Host
    decode_tokens: float | None = None
    memory_bandwidth: float | None = None
    nodes: int | None = None

    @property
    def ranks(self) -> int | None:
        """All devices, or None where the number of nodes is open."""
        return None if self.nodes is None else self.nodes * self.ranks_per_node

    def nodes_of(self, ranks: int) -> int:
        """Nodes that ``ranks`` consecutive ranks fill.

        Raises:
            SettingsError: the cluster has fewer ranks.
        """
        if self.ranks is not None and ranks > self.ranks:
            raise SettingsError(f"{ranks} ranks do not fit cluster {self.name!r} with {self.ranks}; use fewer")
        return -(-ranks // self.ranks_per_node)


def cluster_presets() -> tuple[str, ...]:
    """Names of the bundled clusters."""
    files = [entry.name for entry in _CLUSTERS.iterdir()]
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_cluster(name: str) -> Cluster:
    """A bundled cluster by name, or one described in a YAML file.

    Raises:
        SettingsError: there is neither, or the file lacks a field, has an unknown one, or a value is bad.
    """
    path = Path(name)
    if name in cluster_presets():
        path = Path(str(_CLUSTERS / f"{name}.yaml"))
    elif not path.is_file():
        known = ", ".join(cluster_presets())
        raise SettingsError(f"cluster {name!r}: neither a file nor a bundled cluster; there are: {known}")
    described = read_yaml(path, f"cluster {name!r}")
    if not isinstance(described, Mapping):
        raise SettingsError(f"cluster {name!r}: expected a mapping of fields, found {type(described).__name__}")
    return _cluster(described, name)


def _cluster(described: Mapping[str, Any], where: str) -> Cluster:
    device = dict(_part(described, "device", where))
    for table in ("attention_share", "vision_attention_share"):
        if table in device:
            device[table] = _share_table(device[table], f"cluster {where}: device: {table}")
    links = {name: _build(Link, _part(described, name, where), f"{where}: {name}") for name in ("node", "across")}
    rest = {key: value for key, value in described.items() if key not in ("device", "node", "across", "host")}
    return _build(
        Cluster,
        {
            **rest,
            **links,
            "device": _build(DeviceSpeed, device, f"{where}: device"),
            "host": _build(Host, _part(described, "host", where), f"{where}: host"),
        },
        where,
    )


def _share_table(table: Any, where: str) -> ShareByLength:
    try:
        return tuple((int(length), float(share)) for length, share in table)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where}={table!r} must list pairs [length, share], such as [[1024, 0.4]]") from error


def _part(described: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    part = described.get(name)
    if not isinstance(part, Mapping):
        raise SettingsError(f"cluster {where}: {name} must be a mapping of fields, found {part!r}")
    return part


def _build(kind: type[Part], values: Mapping[str, Any], where: str) -> Part:
    """Make a dataclass from a mapping, naming fields that are unknown, missing or not positive numbers."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise SettingsError(f"cluster {where}: unknown {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    for name, value in values.items():
        if isinstance(value, bool) or (isinstance(value, int | float) and not (value > 0 and math.isfinite(value))):
            raise SettingsError(f"cluster {where}: {name}={value!r} must be a positive, finite number")
        if isinstance(value, str) and name != "name":
            raise SettingsError(f"cluster {where}: {name}={value!r} must be a number (write 9.0e+11, not 9e11)")
    missing = [
        field.name
        for field in fields(kind)  # type: ignore[arg-type]
        if field.name not in values and field.default is MISSING
    ]
    if missing:
        raise SettingsError(f"cluster {where}: {', '.join(missing)} is missing")
    try:
        return kind(**values)
    except TypeError as error:
        raise SettingsError(f"cluster {where}: {error}") from error
