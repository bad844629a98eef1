from dataclasses import Field
from typing import Any, ClassVar

from typing_extensions import Self

class DataclassFields:
    """The fields of options, as the functions of dataclasses look for them."""

    def __init__(self, defaults: dict[str, object]) -> None: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> dict[str, Field[Any]]: ...

class Options:
    """Values of named fields. Immutable; `replace`, ``copy.replace`` and the functions of dataclasses accept them."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    def replace(self, **changes: Any) -> Self: ...
    def __replace__(self, **changes: Any) -> Self: ...

def spelling(requests: tuple[Any, ...], named: dict[str, Any]) -> Any: ...
