"""Typed look-ups in a config dictionary, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.errors import UnknownModelError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """A config dictionary and where it lies ("config", "config.vision_config").

    Attributes:
        values: the dictionary.
        where: its path, for messages.
    """

    values: Mapping[str, Any]
    where: str = "config"

    def section(self, *names: str) -> ConfigFields:
        """The first of the nested dictionaries ``names`` that exists, else this one (flat Hub configs)."""
        for name in names:
            section = self.values.get(name)
            if isinstance(section, Mapping):
                return ConfigFields(section, f"{self.where}.{name}")
        return self

    def vision(self) -> ConfigFields:
        """The vision part, which every family nests.

        Raises:
            UnknownModelError: there is none.
        """
        found = self.section("vision_config")
        if found is self:
            raise UnknownModelError(f"{self.where}: no vision_config; give a vision-language model's config.json")
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer field; a list such as ``[14, 14]`` gives its first entry.

        Raises:
            UnknownModelError: the field is missing without a default, negative, or no integer.
        """
        value = self.values.get(name)
        if value is None:
            value = default
        if isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnknownModelError(f"{self.where}.{name}: expected an integer, found {value!r}")
        if value < 0 or (value == 0 and default != 0):
            raise UnknownModelError(f"{self.where}.{name}={value} must be positive")
        return value

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of integers.

        Raises:
            UnknownModelError: the field is no list of integers.
        """
        value = self.values.get(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
            raise UnknownModelError(f"{self.where}.{name}: expected a list of integers, found {value!r}")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean field."""
        return bool(self.values.get(name, default))
