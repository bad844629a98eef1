// The kernel that records where and when its blocks ran.
#pragma once

#include <cstdint>

namespace gctx {

// The layout of what one block of the probe writes.
struct ProbeBlock {
  std::uint64_t sm = 0;
  std::uint64_t start_ns = 0;  // of the device's global timer
  std::uint64_t end_ns = 0;
  std::uint64_t index = 0;
};

// Text for the driver's own compiler, of the oldest architecture that is served, so that it runs on every newer one.
// Each block takes the time of the device's global timer, waits until `spin_ns` have passed (with a bound on the
// rounds, should that timer ever stand still) and writes {SM, start, end, block}. All warps wait, each by itself:
// blocks of other kernels get the room of warps that have ended, and at a barrier for the others synccheck reports
// warps that take no branch before it (H100 and H200, driver 13.0). The lanes of a warp wait as long as one of them.
inline constexpr const char* probe_ptx = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry cuda_gctx_probe(.param .u64 out, .param .u32 capacity, .param .u64 spin_ns)
{
  .reg .pred %p<5>;
  .reg .b32 %r<8>;
  .reg .b64 %d<10>;
  mov.u64 %d1, %globaltimer;
  mov.u32 %r1, %tid.x;
  ld.param.u64 %d2, [spin_ns];
  mov.u32 %r2, 0;
wait:
  mov.u64 %d3, %globaltimer;
  sub.s64 %d4, %d3, %d1;
  add.u32 %r2, %r2, 1;
  setp.lt.u64 %p1, %d4, %d2;
  setp.lt.u32 %p2, %r2, 50000000;
  and.pred %p3, %p1, %p2;
  vote.sync.any.pred %p3, %p3, 0xffffffff;
  @%p3 bra wait;
  ld.param.u32 %r3, [capacity];
  mov.u32 %r4, %ctaid.x;
  setp.lt.u32 %p4, %r4, %r3;
  setp.eq.and.u32 %p4, %r1, 0, %p4;
  ld.param.u64 %d5, [out];
  cvta.to.global.u64 %d5, %d5;
  mul.wide.u32 %d6, %r4, 32;
  add.s64 %d5, %d5, %d6;
  mov.u32 %r5, %smid;
  cvt.u64.u32 %d7, %r5;
  cvt.u64.u32 %d8, %r4;
  @%p4 st.global.u64 [%d5], %d7;
  @%p4 st.global.u64 [%d5+8], %d1;
  @%p4 st.global.u64 [%d5+16], %d3;
  @%p4 st.global.u64 [%d5+24], %d8;
  ret;
}
)";

}  // namespace gctx
