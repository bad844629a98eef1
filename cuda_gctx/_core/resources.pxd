from libcpp.vector cimport vector

cimport cuda_gctx._core.cpp as cpp
from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.errors cimport GroupRequest


cdef object device_of(int number)
cdef vector[cpp.SmResourcePtr] sms_of(resources) except *


cdef class SMResourceOptions(Options):
    cdef readonly object count
    cdef readonly object coscheduled_sm_count
    cdef readonly object preferred_coscheduled_sm_count
    cdef readonly object backfill
    cdef readonly object locality_domain
    cdef readonly object supplemental_sms
    cdef vector[GroupRequest] _requests


cdef class SMResource:
    cdef cpp.Runtime* _runtime
    cdef cpp.SmResourcePtr _sm
    cdef cpp.CUdevResourceDesc _descriptor

    @staticmethod
    cdef SMResource taking(cpp.Runtime* runtime, cpp.SmResourcePtr& sm)


cdef class WorkqueueResourceOptions(Options):
    cdef readonly object sharing_scope
    cdef readonly object concurrency_limit


cdef class WorkqueueResource:
    cdef cpp.Runtime* _runtime
    cdef int _device
    cdef cpp.CUdevResource _config
    cdef cpp.CUdevResource _existing
    cdef cpp.Slot[cpp.ContextBox] _of  # whose queues these are, until it is configured
    cdef bint _shares

    cdef cpp.CUdevResource* given(self) noexcept


cdef class DeviceResources:
    cdef cpp.Runtime* _runtime
    cdef int _device
    cdef cpp.Slot[cpp.ContextBox] _context  # empty: of the device
    cdef SMResource _sm

    @staticmethod
    cdef DeviceResources of_device(cpp.Runtime* runtime, int device)

    @staticmethod
    cdef DeviceResources of_context(const cpp.ContextHandle& context)
