"""Model families: one declarative file each, and how a checkpoint's files are read."""

from trimtab.families.checkpoint import Checkpoint, read_checkpoint
from trimtab.families.family import BatchRows, Family
from trimtab.families.geometry import vision_geometry
from trimtab.families.registry import FAMILIES, family_for
from trimtab.schema.geometry import VisionGeometry

__all__ = [
    "FAMILIES",
    "BatchRows",
    "Checkpoint",
    "Family",
    "VisionGeometry",
    "family_for",
    "read_checkpoint",
    "vision_geometry",
]
