"""What the modules for torch use of torch, on the streams of the software driver, where torch itself cannot run.

It shows what those modules ask of torch and in which order, and that their streams live as long as they should. What
torch makes of that is tested on a GPU, by the same tests and more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from cuda_gctx import Device, Stream


@dataclass(frozen=True)
class TorchDevice:
    type: str
    index: int | None


def torch_device(text: str | TorchDevice) -> TorchDevice:
    if isinstance(text, TorchDevice):
        return text
    kind, _, number = text.partition(":")
    return TorchDevice(kind, int(number) if number else None)


class StandInTorch(ModuleType):
    """The module ``torch``. ``waits`` holds the pairs of (who waits, for whom) as handles, in the order asked."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.__version__ = "2.11.0"
        self.version = SimpleNamespace(cuda="13.0")
        self.device = torch_device
        self.waits: list[tuple[int, int]] = []
        self.carve_outs: list[int | None] = [None]  # in the order set, the present one last
        self._C = SimpleNamespace(
            _cuda_hasPrimaryContext=lambda device: True,
            _get_sm_carveout_experimental=lambda: self.carve_outs[-1],
            _set_sm_carveout_experimental=self.carve_outs.append,
        )
        self._defaults = {number: Device(number).create_stream() for number in range(Device.count())}
        self._handles = {number: stream.handle for number, stream in self._defaults.items()}
        self._thread = threading.local()
        torch = self

        class TorchStream:
            def __new__(cls, stream_ptr: int, device: int) -> Any:
                self = super().__new__(cls)
                self.cuda_stream = stream_ptr
                self.device = TorchDevice("cuda", device)
                return self

            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, self.cuda_stream

            def record_event(self) -> Any:
                return SimpleNamespace(of=self.cuda_stream, event=Stream(self).record())

            def wait_event(self, recorded: Any) -> None:
                torch.waits.append((self.cuda_stream, recorded.of))
                Stream(self).wait(recorded.event)

            def wait_stream(self, other: Any) -> None:
                self.wait_event(other.record_event())

            def __eq__(self, other: object) -> bool:
                return isinstance(other, TorchStream) and self.cuda_stream == other.cuda_stream

            def __hash__(self) -> int:
                return hash(self.cuda_stream)

        class ExternalStream(TorchStream):
            pass

        self.cuda = SimpleNamespace(
            Stream=TorchStream,
            ExternalStream=ExternalStream,
            is_available=lambda: True,
            current_blas_handle=threading.get_ident,  # one for each thread
            current_device=lambda: self._state()[0],
            current_stream=self._current_stream,
            default_stream=lambda device: TorchStream(0, device),
            set_stream=self._set_stream,
            stream=self._use_stream,
        )

    def _state(self) -> list[Any]:
        """The current device of the thread, and the handle of the current stream of each device."""
        if not hasattr(self._thread, "state"):
            self._thread.state = [0, dict(self._handles)]
        state: list[Any] = self._thread.state
        return state

    def _current_stream(self, device: TorchDevice | int | None = None) -> Any:
        # As torch does: a new object made of the handle, which keeps nothing alive.
        number, streams = self._state()
        if device is not None:
            number = device if isinstance(device, int) else device.index
        return self.cuda.Stream(streams[number], number)

    def _set_stream(self, stream: Any) -> None:
        state = self._state()
        state[0], state[1][stream.device.index] = stream.device.index, stream.cuda_stream

    @contextmanager
    def _use_stream(self, stream: Any) -> Iterator[None]:
        state = self._state()
        before = state[0], state[1][stream.device.index]
        self._set_stream(stream)
        try:
            yield
        finally:
            state[0], state[1][stream.device.index] = before

    def close(self) -> None:
        for stream in self._defaults.values():
            stream.close()


class StandInDispatchMode:
    """torch's TorchDispatchMode: the open ones are the `modes` of the stand-in, the innermost last."""

    def __enter__(self) -> StandInDispatchMode:
        sys.modules["torch"].modes.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert sys.modules["torch"].modes.pop() is self
