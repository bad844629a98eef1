"""The Cython classes over the C++ core: thin, and without the GIL where the driver works.

Stands on the C++ core alone. What this room needs of a higher one is registered with it.
"""
