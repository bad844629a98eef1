"""Declarations for Cython modules of other packages: ``from cuda_gctx.native.c cimport gctx_partition``."""
