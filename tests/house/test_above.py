"""What lower rooms use of higher ones: registered by the package's root, and imported at its first use."""

from __future__ import annotations

import pytest

import cuda_gctx
from cuda_gctx._core.above import Above, above


def test_every_registered_name_is_there() -> None:
    assert above.verify is cuda_gctx.partitions.verify
    for name in above._loaders:
        assert callable(getattr(above, name))


def test_a_loader_is_called_at_the_first_use_only() -> None:
    calls = []

    def load() -> object:
        calls.append(1)
        return print

    rooms = Above()
    rooms.register(show=load)
    assert not calls
    assert rooms.show is rooms.show is print
    assert calls == [1]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="registered 'roof'"):
        above.roof  # noqa: B018
