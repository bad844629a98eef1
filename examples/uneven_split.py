"""Uneven groups, exact groups and all remaining SMs: what the same request means on every driver."""

from __future__ import annotations

from cuda_gctx import Device, SMResource, SMResourceOptions, SplitError, system


def show(whole: SMResource, title: str, options: SMResourceOptions) -> None:
    groups, remainder = whole.split(options)
    sizes = ", ".join(
        f"{group.sm_count}"
        + (f" (requested {group.requested})" if group.requested not in (None, group.sm_count) else "")
        for group in groups
    )
    print(f"{title:28} {sizes}; remainder {remainder.sm_count}; {groups[0].strategy}")
    # The groups and the remainder are disjoint and complete, whatever the strategy.
    assert sum(group.sm_count for group in groups) + remainder.sm_count == whole.sm_count
    assert not any(group.overlaps(remainder) for group in groups)


def main() -> None:
    dev = Device(0)
    whole = dev.resources.sm
    print(f"{dev.name}, CUDA driver {'.'.join(map(str, system.driver_version))}, {whole.sm_count} SMs")
    grain = whole.min_partition_size
    show(whole, "three uneven groups", SMResourceOptions([grain, 2 * grain, 3 * grain]))
    show(whole, "rounded up to the grain", SMResourceOptions(grain + 2))
    show(whole, "exact, without clusters", SMResourceOptions(grain + 2, backfill=True))
    show(whole, "a group, and all remaining", SMResourceOptions([2 * grain, None]))
    show(whole, "every SM in two groups", SMResourceOptions([2 * grain, None], coscheduled_sm_count=2))
    try:
        whole.split(SMResourceOptions([whole.sm_count, grain]))
    except SplitError as error:
        print(error)
        if error.suggestion is not None:
            show(whole, "what it suggests", error.suggestion)


if __name__ == "__main__":
    main()
