"""Work of other libraries in a partition: one module for each of them, which imports it at first use."""
