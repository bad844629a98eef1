"""The Cython classes over the C++ core: thin, and without the GIL where the driver works.

May use: ``_cpp/handles``, ``_cpp/resources``, ``_cpp/driver``.
What this room needs of a higher one is registered in ``above``.
"""
