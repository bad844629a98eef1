"""Measuring: the measuring loop, statistics of samples, known causes of missing concurrency, and the machine's state.

May use: ``_core``. Loads numpy at first use.
"""
