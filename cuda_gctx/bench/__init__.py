"""Benchmarks: what calls cost compared with the raw driver and with peers, and what a background partition is worth."""
