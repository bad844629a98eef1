"""Benchmarks: the cost of calls compared with the raw driver and with peers, and the benefit of a background partition.

May use: ``compat``, ``cuda_gctx``, ``interop``, ``partitions``, ``measure``, ``draw``, ``_core``,
``_cpp/handles``, ``_cpp/resources``, ``_cpp/driver``.
"""
