"""Two libraries that share a card without knowing of each other: each takes free SMs, and none waits for the other.

With ``among="free"``, a partition gets SMs that no open context of the process is known to use. Finding and claiming
them is one step, so that the order of the imports does not matter, nor which thread is first.
"""

from __future__ import annotations

from cuda_gctx import Device, SplitError, tune

US = 1_000


class Codec:
    """A library for video: a few SMs that it must not share."""

    def __init__(self, dev: Device) -> None:
        self.parts = dev.partition(codec=16, among="free")

    def encode(self) -> None:
        tune.spin(self.parts.codec.stream, blocks=16, spin_ns=100 * US)


class Solver:
    """A library for numerics: half of the device, or what others have left of it."""

    def __init__(self, dev: Device) -> None:
        wanted = dev.sm_count // 2
        try:
            self.parts = dev.partition(solver=wanted, among="free")
        except SplitError:  # others were first
            self.parts = dev.partition(solver=None, among="free")

    def solve(self) -> None:
        tune.spin(self.parts.solver.stream, blocks=4 * self.parts.solver.sm_count, spin_ns=200 * US)


def main() -> None:
    dev = Device(0)
    codec, solver = Codec(dev), Solver(dev)
    rest = dev.partition(
        everything_else=None, among="free"
    )  # what the program itself does; from driver 13.1 on, SMs outside of the units stay free
    for name, part in (
        ("codec", codec.parts.codec),
        ("solver", solver.parts.solver),
        ("everything else", rest.everything_else),
    ):
        print(f"{name}: {part.sm_count} SMs")
    print(f"free now: {dev.resources.sm.free.sm_count if dev.resources.sm.free else 0} SMs")

    solver.solve()
    codec.encode()
    codec.parts.codec.sync()
    print("codec is done, solver", "too" if solver.parts.solver.stream.is_done else "still works")
    solver.parts.solver.sync()

    seen = [parts.verify().contexts[0].sm_ids for parts in (codec.parts, solver.parts, rest)]
    in_use = set().union(*seen)
    assert sum(map(len, seen)) == len(in_use)
    print(f"no SM is shared, and {len(in_use)} of {dev.sm_count} are in use ({dev.name})")
    for parts in (codec.parts, solver.parts, rest):
        parts.close()


if __name__ == "__main__":
    main()
