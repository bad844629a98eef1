"""Measuring: the loop, statistics of samples, latencies next to a load, and the state of the machine."""
