"""Work of other libraries in a partition: one module for each library, which imports it at first use.

May use: ``partitions``, ``measure``, ``draw``, ``_core``, ``_lazy``.
"""
