"""Measuring: the measuring loop, statistics of samples, and the state of the machine.

May use: ``_core``.
"""
