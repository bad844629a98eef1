"""The Cython classes over the C++ core: thin, and without the GIL where the driver works."""
