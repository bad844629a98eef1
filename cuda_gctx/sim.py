"""The former name of the software driver, which is a package of its own."""

raise ImportError(
    "cuda_gctx.sim is the package cuda_software_driver: run pip install ./software_driver in a clone of cuda_gctx, and "
    "import cuda_software_driver"
)
