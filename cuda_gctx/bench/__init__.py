"""Benchmarks: the cost of calls compared with the raw driver and with peers, and the benefit of a background partition.

May use: ``measure``, ``_core``, ``_cpp/handles``.
"""
