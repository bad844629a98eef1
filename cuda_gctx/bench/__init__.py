"""Benchmarks: the cost of calls compared with the raw driver and with peers.

May use: ``measure``, ``_core``, ``_cpp/handles``.
"""
