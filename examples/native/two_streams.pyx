# cython: language_level=3
# distutils: language = c
"""Two streams on disjoint SMs, in Cython."""

from cuda_gctx.native.c cimport (
    GCTX_REST,
    gctx_close_context,
    gctx_close_stream,
    gctx_context,
    gctx_context_sm_count,
    gctx_create_stream,
    gctx_group,
    gctx_last_error,
    gctx_partition,
    gctx_stream,
    gctx_stream_handle,
)


cdef int check(int answer) except -1:
    if answer != 0:
        raise RuntimeError(gctx_last_error(NULL).decode())
    return 0


def sizes(unsigned first):
    """The SM counts of two contexts of device 0, each with a stream: `first` SMs, and all others."""
    cdef gctx_group requests[2]
    cdef gctx_context* contexts[2]
    cdef gctx_stream* stream
    requests[0] = gctx_group(first, 0, 0)
    requests[1] = gctx_group(GCTX_REST, 0, 0)
    check(gctx_partition(0, requests, NULL, 2, 0, contexts))
    found = []
    for i in range(2):
        check(gctx_create_stream(contexts[i], 0, &stream))
        assert gctx_stream_handle(stream) != NULL
        found.append(gctx_context_sm_count(contexts[i]))
        gctx_close_stream(stream)
        check(gctx_close_context(contexts[i]))
    return found
