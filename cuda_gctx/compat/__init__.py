"""Drop-ins: functions and classes with the names and arguments of other libraries, made of this package's contexts.

May use: ``cuda_gctx``, ``interop``, ``partitions``, ``measure``, ``draw``, ``_core``, ``_lazy``.
"""
