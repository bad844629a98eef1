"""The command line, ``cuda-gctx``. Click and rich, which it needs, are imported when it is called."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    try:
        import rich  # noqa: F401  the commands need it

        from cuda_gctx.cli._root import root
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the command line needs {error.name}, which is not installed: pip install click rich")
    except KeyboardInterrupt:
        print("Error: interrupted", file=sys.stderr)
        sys.exit(130)
    root(prog_name="cuda-gctx")
