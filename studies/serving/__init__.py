"""A serving study: prefill next to decode under a limit on the time between tokens, by seven contenders in one loop.

The contenders decide (contenders), the loop asks them (loop), an executor runs what they decided: on a GPU (card), or
on a virtual clock with a cost model (virtual). Only bench, calibrate, card, kernels and soak need a GPU.
"""
