"""Which shapes of a waiting kernel does synccheck report?

    compute-sanitizer --tool synccheck python tests/trust/barriers.py
    python tests/trust/barriers.py

Kernels of 1024 threads that wait for a time, one launch of each, in variants of how the threads wait and meet. Alone,
it prints with which lanes each variant comes to its barrier: all of them, where the warps have converged.
"""

from __future__ import annotations

import ctypes

BLOCKS, THREADS, WARPS, SPIN_NS = 4, 1024, 32, 200_000

HEAD = """
.version 7.0
.target sm_70
.address_size 64
"""
KERNEL = """
.visible .entry {name}(.param .u64 out, .param .u64 spin_ns)
{{
  .reg .pred %p<6>;
  .reg .b32 %r<12>;
  .reg .b64 %d<10>;
  mov.u64 %d1, %globaltimer;
  mov.u32 %r1, %tid.x;
  ld.param.u64 %d2, [spin_ns];
  ld.param.u64 %d5, [out];
  cvta.to.global.u64 %d5, %d5;
  mov.u32 %r2, 0;
{body}
  ret;
}}
"""
LOOP = """
wait:
  mov.u64 %d3, %globaltimer;
  sub.s64 %d4, %d3, %d1;
  add.u32 %r2, %r2, 1;
  setp.lt.u64 %p2, %d4, %d2;
  setp.lt.u32 %p3, %r2, 50000000;
  and.pred %p4, %p2, %p3;
"""
ONE_WAITS = (
    "  setp.ne.u32 %p1, %r1, 0;\n  @%p1 bra done;\n" + LOOP + "  @%p4 bra wait;\n  st.global.u64 [%d5], %d3;\ndone:\n"
)
ALL_WAIT = LOOP + "  @%p4 bra wait;\n"
WARP_WAITS = (
    "  shr.u32 %r3, %r1, 5;\n  setp.ne.u32 %p1, %r3, 0;\n  @%p1 bra done;\n"
    + LOOP
    + "  vote.sync.any.pred %p5, %p4, 0xffffffff;\n  @%p5 bra wait;\n"
    "  setp.eq.u32 %p1, %r1, 0;\n  @%p1 st.global.u64 [%d5], %d3;\ndone:\n"
)
# Each lane notes which lanes are active with it.
MASK = """
  mov.u32 %r4, %ctaid.x;
  shr.u32 %r5, %r1, 5;
  shl.b32 %r4, %r4, 5;
  add.u32 %r4, %r4, %r5;
  mul.wide.u32 %d6, %r4, 4;
  add.s64 %d6, %d5, %d6;
  activemask.b32 %r6;
  red.global.and.b32 [%d6+8], %r6;
"""
BARRIER = "  barrier.sync 0;\n"
ALIGNED = "  bar.sync 0;\n"
WARP_BARRIER = "  bar.warp.sync 0xffffffff;\n"
VARIANTS = {
    "only_a_barrier": ALIGNED,
    "one_waits": ONE_WAITS + BARRIER,
    "one_waits_aligned": ONE_WAITS + ALIGNED,
    "one_waits_warp_barrier": ONE_WAITS + WARP_BARRIER + ALIGNED,
    "one_waits_mask": ONE_WAITS + MASK + ALIGNED,
    "first_warp_waits": WARP_WAITS + ALIGNED,
    "first_warp_waits_mask": WARP_WAITS + MASK + ALIGNED,
    "all_wait": ALL_WAIT + ALIGNED,
    "all_wait_without_barrier": ALL_WAIT,
}


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise RuntimeError(f"{name} answered {code}")

    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    out, size = ctypes.c_uint64(), 8 + 4 * BLOCKS * WARPS
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    text = HEAD + "".join(KERNEL.format(name=name, body=body) for name, body in VARIANTS.items())
    call("cuModuleLoadData", ctypes.byref(module), text.encode())
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(size))
    for name in VARIANTS:
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        call("cuMemsetD8_v2", out, ctypes.c_ubyte(0xFF), ctypes.c_size_t(size))
        spin = ctypes.c_uint64(SPIN_NS)
        pointers = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in (out, spin)))
        call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        call("cuCtxSynchronize")
        seen = (ctypes.c_uint32 * (BLOCKS * WARPS))()
        call("cuMemcpyDtoH_v2", seen, ctypes.c_uint64(out.value + 8), ctypes.c_size_t(size - 8))
        print(f"VARIANT {name}: lanes {sorted({f'{mask:08x}' for mask in seen})}", flush=True)


if __name__ == "__main__":
    main()
