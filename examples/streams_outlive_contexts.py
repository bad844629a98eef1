"""A stream keeps what it runs on: the context under it is destroyed with its last stream, not before."""

from __future__ import annotations

from cuda_gctx import Context, ContextOptions, Device, SMResourceOptions, Stream


def make_stream(dev: Device) -> tuple[Context, Stream]:
    (group,), _ = dev.resources.sm.split(SMResourceOptions(2 * dev.resources.sm.min_partition_size))
    ctx = dev.create_context(ContextOptions(resources=[group], name="control"))
    return ctx, ctx.create_stream()


def main() -> None:
    dev = Device(0)
    print(dev.name)
    ctx, stream = make_stream(dev)
    event = ctx.create_event()
    print(f"before: {stream.resources.sm.sm_count} SMs")

    ctx.close()
    try:
        ctx.create_stream()
    except RuntimeError as error:
        print(f"the context: {error}")

    # The driver still has the context, because the stream needs it.
    stream.record(event)
    stream.sync()
    print(f"the stream: still works, event done: {event.is_done}")

    stream.close()
    event.close()  # with the last of them the green context is destroyed
    try:
        stream.sync()
    except RuntimeError as error:
        print(f"the stream: {error}")


if __name__ == "__main__":
    main()
