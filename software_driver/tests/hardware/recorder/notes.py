"""The answers of a section, written out as they come in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .gpu import Refused


class Note:
    """The answers of a section as they come in, written out before the next is asked for: a crash leaves them."""

    def __init__(self, path: Path | None) -> None:
        self.answers: dict[str, Any] = {}
        self._path = path

    def __call__(self, name: str, ask: Callable[[], Any]) -> Any:
        self.answers[name] = "no answer"
        self.save()
        try:
            self.answers[name] = ask()
        except Refused as refused:
            self.answers[name] = refused.answer
        except Exception as error:  # an answer of its own: the next question is still worth asking
            self.answers[name] = {"raised": f"{type(error).__name__}: {error}"}
        self.save()
        return self.answers[name]

    def save(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps({"answers": self.answers}))
