from libcpp.vector cimport vector

from cuda_gctx._core.arguments cimport Options
from cuda_gctx._core.cpp cimport ContextBox, CUdevResource, CUdevResourceDesc, Runtime, Slot, SmResourcePtr, StreamBox
from cuda_gctx._core.errors cimport GroupRequest


cdef object device_of(int number)


cdef class SMResourceOptions(Options):
    cdef readonly object count
    cdef readonly object coscheduled_sm_count
    cdef readonly object preferred_coscheduled_sm_count
    cdef readonly object backfill
    cdef readonly object locality_domain
    cdef readonly object supplemental_sms
    cdef vector[GroupRequest] _requests

    cdef int _check_open_groups(self) except -1
    cdef int _fill_requests(self) except -1


cdef class SMResource:
    cdef Runtime* _runtime
    cdef SmResourcePtr _sm
    cdef CUdevResourceDesc _descriptor

    @staticmethod
    cdef SMResource taking(Runtime* runtime, SmResourcePtr& sm)


cdef class WorkqueueResourceOptions(Options):
    cdef readonly object sharing_scope
    cdef readonly object concurrency_limit


cdef class WorkqueueResource:
    cdef Runtime* _runtime
    cdef int _device
    cdef CUdevResource _config
    cdef CUdevResource _existing
    cdef Slot[ContextBox] _of  # whose queues these are, until it is configured
    cdef bint _shares

    cdef CUdevResource* given(self) noexcept


cdef class DeviceResources:
    cdef Runtime* _runtime
    cdef int _device
    cdef Slot[ContextBox] _context  # empty: of the device
    cdef SMResource _sm

    @staticmethod
    cdef DeviceResources of_device(Runtime* runtime, int device)

    @staticmethod
    cdef DeviceResources of_context(Slot[ContextBox]& context)

    @staticmethod
    cdef DeviceResources of_stream(Slot[StreamBox]& stream)

    cdef DeviceResources filled(self)
