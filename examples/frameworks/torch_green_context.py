"""Code written for torch's GreenContext: the import changes, and `exclusive` keeps contexts apart."""

from __future__ import annotations

import torch

from cuda_gctx.compat.torch_green import GreenContext


def main() -> None:
    x = torch.randn(2048, 2048, device="cuda:0")

    control = GreenContext.create(num_sms=10, exclusive=True)
    rest = GreenContext.create(num_sms=96, exclusive=True)
    print(f"control has {control.sm_count} SMs, rest {rest.sm_count}, and they share none")

    control.set_context()
    y = torch.sigmoid(x)
    control.pop_context()

    with rest:
        z = x @ x
    print(f"the same as without: {torch.equal(y + z, torch.sigmoid(x) + x @ x)}")

    # Several at once: their streams, and the order is yours.
    streams = [control.Stream(), rest.Stream()]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.sigmoid(x)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    control.close()
    rest.close()


if __name__ == "__main__":
    main()
