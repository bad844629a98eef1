"""Measuring: statistics of samples, known causes of lacking concurrency, and what a measurement was taken on.

May use: ``_core``.
"""
