"""Benchmarks: what calls cost compared with the raw driver and with peers, and what a background partition is worth.

May use: ``compat``, ``cuda_gctx``, ``interop``, ``partitions``, ``measure``, ``draw``, ``_core``, ``_lazy``,
``_cpp/handles``, ``_cpp/resources``, ``_cpp/driver``.
"""
