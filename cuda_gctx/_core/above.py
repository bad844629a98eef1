"""Functions and classes that a room needs from a higher room.

Lower rooms do not import higher ones: the root of the package registers a loader for each such function or class,
and the loader imports it at its first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["above"]


class Above:
    """Functions and classes of higher rooms, as attributes. A loader is called once, at the first use of its name."""

    def __init__(self) -> None:
        self._loaders: dict[str, Callable[[], Any]] = {}

    def register(self, **loaders: Callable[[], Any]) -> None:
        """Register loaders by name; each imports and returns a function or a class."""
        self._loaders.update(loaders)

    def __getattr__(self, name: str) -> Any:
        try:
            load = self._loaders[name]
        except KeyError:
            raise AttributeError(f"no higher room has registered {name!r}") from None
        found = load()
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return f"<Above: {', '.join(self._loaders)}>"


above = Above()
