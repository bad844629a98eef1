"""The same as ``cuda-gctx``, for ``python -m cuda_gctx.cli``."""

from __future__ import annotations

from cuda_gctx.cli import main

if __name__ == "__main__":
    main()
