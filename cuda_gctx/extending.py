"""Names for packages on top of this one, such as ``cuda_gctx.comm``: checks of arguments, recorded launches, progress.

Programs do not need this module. Importing it loads no driver: each name is imported from its module at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_gctx._core.lazy import lazy_names as lazy_names

if TYPE_CHECKING:
    from cuda_gctx._core import clock as clock
    from cuda_gctx._core.extension import Counter as Counter
    from cuda_gctx._core.extension import LaunchSequence as LaunchSequence
    from cuda_gctx._core.extension import as_bool as as_bool
    from cuda_gctx._core.extension import as_int as as_int
    from cuda_gctx._core.extension import as_seconds as as_seconds
    from cuda_gctx._core.progress import Progress as Progress

_NAMES_OF_MODULE = {
    "cuda_gctx._core": ("clock",),
    "cuda_gctx._core.extension": ("Counter", "LaunchSequence", "as_bool", "as_int", "as_seconds"),
    "cuda_gctx._core.progress": ("Progress",),
}

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = lazy_names(globals(), _NAMES_OF_MODULE)
    __all__.append("lazy_names")
