// Programs in PTX, executed block by block without a driver around them.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ptx/block.hpp"
#include "tests/check.hpp"

using software_driver::ptx::Block;
using software_driver::ptx::Fault;
using software_driver::ptx::Kernel;
using software_driver::ptx::Program;
using software_driver::ptx::ProgramVariable;
using software_driver::ptx::Span;
using software_driver::ptx::Surroundings;
using software_driver::ptx::Turn;

namespace {

constexpr std::uint64_t memory_begin = 0x7f0000000000;

struct Device : Surroundings {
  std::vector<char> memory = std::vector<char>(1 << 16);
  std::uint64_t used = 1 << 15;  // by variables
  std::string printed;
  std::uint64_t handle = 0;
  std::uint32_t condition = 0;

  Span find(std::uint64_t address) override {
    if (address - memory_begin < memory.size()) {
      return {memory_begin, memory_begin + memory.size(), memory.data(), true, false};
    }
    return {};
  }
  void print(const std::string& text) override { printed += text; }
  void set_condition(std::uint64_t of, std::uint32_t value) override {
    handle = of;
    condition = value;
  }
  std::uint64_t allocate(std::uint64_t size) override { return memory_begin + (used += size) - size; }
  void release(std::uint64_t) override {}
  void reads(std::uint64_t, std::size_t) override {}
  void writes(std::uint64_t, std::size_t) override {}

  std::uint32_t word(std::size_t i) const {
    std::uint32_t value = 0;
    std::memcpy(&value, memory.data() + 4 * i, sizeof value);
    return value;
  }
  void set_word(std::size_t i, std::uint32_t value) { std::memcpy(memory.data() + 4 * i, &value, sizeof value); }
};

struct Launch {
  unsigned blocks = 1;
  unsigned threads = 32;
  unsigned shared = 0;
  std::uint64_t budget = 1 << 16;
};

const std::string head = ".version 8.0\n.target sm_90\n.address_size 64\n";

// The registers of the tests, and in %a the address of what they write.
std::string kernel_of(const std::string& body, const std::string& before = "") {
  return head + before +
         ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .f32 "
         "%f<9>;\n.reg .b64 %d<20>;\n.reg .b64 %a, %mine;\nld.param.u64 %a, [out];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 "
         "%mine, %r0, 4;\nadd.u64 %mine, %mine, %a;\n" +
         body + "\nret;\n}\n";
}

Kernel bound(const std::string& text, Device& device, const Launch& launch) {
  Kernel kernel;
  kernel.program = Program::read(text);
  kernel.entry = kernel.program->entry("k");
  kernel.grid = {launch.blocks, 1, 1};
  kernel.threads = {launch.threads, 1, 1};
  kernel.dynamic_shared = launch.shared;
  kernel.parameters.resize(8);
  std::memcpy(kernel.parameters.data(), &memory_begin, 8);
  if (kernel.entry != nullptr) {
    software_driver::ptx::bind(kernel, [&](const ProgramVariable& variable) {
      const std::uint64_t at = device.used;
      std::memcpy(device.memory.data() + at, variable.initial.data(), variable.initial.size());
      device.used += (variable.size + 15) / 16 * 16;
      return memory_begin + at;
    });
  }
  return kernel;
}

// Runs all blocks of a kernel in turns. Returns what ended it, or nothing.
std::string run(const std::string& text, Device& device, const Launch& launch = {}) {
  const Kernel kernel = bound(text, device, launch);
  if (kernel.entry == nullptr) {
    return "there is no kernel: " + kernel.program->unknown;
  }
  if (const std::string unknown = kernel.program->why_not(*kernel.entry); !unknown.empty()) {
    return "unknown: " + unknown;
  }
  std::vector<std::unique_ptr<Block>> blocks;
  for (unsigned i = 0; i < launch.blocks; ++i) {
    blocks.push_back(std::make_unique<Block>(kernel, device, i, 7 + i));
  }
  unsigned idle = 0;
  std::uint64_t now = 0;
  while (!blocks.empty()) {
    bool is_idle = true;
    for (std::size_t i = 0; i < blocks.size();) {
      try {
        blocks[i]->forget_spans();
        const Turn turn = blocks[i]->run(launch.budget, now);
        is_idle = is_idle && turn.is_idle;
        if (turn.is_over) {
          blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      } catch (const Fault& fault) {
        return std::string(fault.what()) + ", " + blocks[i]->place();
      }
    }
    now += 1000;
    idle = is_idle ? idle + 1 : 0;
    if (idle > 0 && idle % 100 == 0 &&
        std::ranges::all_of(blocks, [](const std::unique_ptr<Block>& block) { return block->is_stuck(); })) {
      return "stuck, " + blocks.front()->place();
    }
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Runs a body that leaves its result in %r1 of each thread, and checks the first words.
void gives(const char* name, const std::string& body, const std::vector<std::uint32_t>& expected,
           const std::string& before = "") {
  Device device;
  const std::string end = run(kernel_of(body + "\nst.global.u32 [%mine], %r1;", before), device);
  CHECK(end.empty());
  if (!end.empty()) {
    std::printf("%s: %s\n", name, end.c_str());
    return;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (device.word(i) != expected[i]) {
      software_driver::test::fail(name, static_cast<int>(i), std::to_string(device.word(i)).c_str());
    }
  }
}

void test_arithmetic() {
  gives("mad", "mad.lo.s32 %r1, %r0, 3, -1;", {~0u, 2, 5});
  gives("mulhi", "add.s32 %r2, %r0, -1; mul.hi.s32 %r1, %r2, 7;", {~0u, 0});
  gives("div", "sub.s32 %r2, 5, %r0; div.s32 %r1, %r2, -2;",
        {static_cast<std::uint32_t>(-2), static_cast<std::uint32_t>(-2)});
  gives("carry", "mov.u32 %r2, 0xffffffff; add.cc.u32 %r3, %r2, %r0; addc.u32 %r1, 0, 0;", {0, 1, 1});
  gives("bfe", "mov.u32 %r2, 0x80f0; bfe.s32 %r1, %r2, 4, 4;", {~0u});
  gives("bfi", "bfi.b32 %r1, %r0, 0xff, 8, 4;", {0xff, 0x1ff, 0x2ff});
  gives("prmt", "prmt.b32 %r1, 0x03020100, 0x07060504, 0x5140;", {0x05010400});
  gives("lop3", "lop3.b32 %r1, 0xf0, 0xcc, 0xaa, 0x80;", {0x80});
  gives("shf", "shf.l.wrap.b32 %r1, 0x80000000, 1, 4;", {0x18});
  gives("dp4a", "dp4a.s32.s32 %r1, 0x01ff0203, 0x01010101, 10;", {15});
  gives("fns", "fns.b32 %r1, 0x90, 0, 2;", {7});
  gives("popc", "popc.b32 %r1, %r0;", {0, 1, 1, 2});
  gives("sat", "mov.f32 %f1, 0f40000000; cvt.sat.f32.f32 %f2, %f1; mov.b32 %r1, %f2;", {0x3f800000});
  gives("cvt", "mov.f32 %f1, 0fC0200000; cvt.rni.s32.f32 %r1, %f1;", {static_cast<std::uint32_t>(-2)});
  gives("cvt to u8", "mov.f32 %f1, 0f44000000; cvt.rzi.u8.f32 %r1, %f1;", {255});
  gives("nan", "mov.f32 %f1, 0f7F800000; sub.f32 %f2, %f1, %f1; mov.b32 %r1, %f2;", {0x7fffffff});
  gives("round up", "mov.f32 %f1, 0f3F800000; add.rp.f32 %f2, %f1, 0f2F800000; mov.b32 %r1, %f2;", {0x3f800001});
  gives("ftz", "mov.f32 %f1, 0f00400000; add.ftz.f32 %f2, %f1, %f1; mov.b32 %r1, %f2;", {0});
  gives("fma", "mov.f32 %f1, 0f3F800001; fma.rn.f32 %f2, %f1, %f1, 0fBF800002; mov.b32 %r1, %f2;", {0x28800000});
  gives("half", "mov.f32 %f1, 0f3F801000; cvt.rn.f16.f32 %h1, %f1; add.f16 %h2, %h1, %h1; cvt.u32.u16 %r1, %h2;",
        {0x4000});
  gives("max", "mov.f32 %f1, 0f7FC00000; max.f32 %f2, %f1, 0f40000000; mov.b32 %r1, %f2;", {0x40000000});
  gives("set", "set.lt.u32.s32 %r1, %r0, 2;", {~0u, ~0u, 0});
  gives("selp", "setp.gt.or.s32 %p1|%p2, %r0, 3, 0; selp.b32 %r1, 5, 6, %p2;", {5, 5, 5, 5, 6});
  gives("vector", "mov.b64 %d1, {%r0, 7}; mov.b64 {%r2, %r1}, %d1;", {7, 7});
  gives("ternary", "@!%p1 bra A; A: setp.eq.s32 %p1, %r0, 1; mov.u32 %r1, 4; @%p1 mov.u32 %r1, 9;", {4, 9, 4});
}

void test_control() {
  // Lanes that take both sides of a branch meet again behind it.
  gives("divergence",
        "mov.u32 %r1, 0; setp.lt.u32 %p1, %r0, 16; @%p1 bra A; mov.u32 %r1, 5; bra B;\nA: mov.u32 %r1, 3;\nB: "
        "activemask.b32 %r2; popc.b32 %r2, %r2; add.u32 %r1, %r1, %r2;",
        {35, 35});
  gives("loop",
        "mov.u32 %r1, 0; mov.u32 %r2, 0;\nL: add.u32 %r1, %r1, %r2; add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, "
        "%r0; @%p1 bra L;",
        {0, 1, 3, 6, 10});
  gives("table",
        "rem.u32 %r2, %r0, 3; T: .branchtargets A, B, C; brx.idx %r2, T;\nA: mov.u32 %r1, 10; bra E;\nB: mov.u32 %r1, "
        "20; "
        "bra E;\nC: mov.u32 %r1, 30;\nE:",
        {10, 20, 30, 10});
  const std::string fib =
      ".func (.param .b32 result) fib(.param .b32 n)\n{\n.reg .b32 %r<9>;\n.reg .pred %p;\nld.param.u32 %r1, "
      "[n];\nsetp.lt.s32 %p, %r1, 2;\n@%p bra D;\nadd.s32 %r2, %r1, -1;\n{\n.param .b32 param0;\nst.param.b32 "
      "[param0+0], %r2;\n.param .b32 retval0;\ncall.uni (retval0), fib, (param0);\nld.param.b32 %r3, "
      "[retval0+0];\n}\nadd.s32 %r2, %r1, -2;\n{\n.param .b32 param0;\nst.param.b32 [param0+0], %r2;\n.param .b32 "
      "retval0;\ncall.uni (retval0), fib, (param0);\nld.param.b32 %r4, [retval0+0];\n}\nadd.s32 %r1, %r3, %r4;\nD: "
      "st.param.b32 [result+0], %r1;\nret;\n}\n";
  gives("recursion", ".param .b32 p; .param .b32 q; st.param.b32 [p], %r0; call (q), fib, (p); ld.param.b32 %r1, [q];",
        {0, 1, 1, 2, 3, 5, 8, 13}, fib);
  gives("directives in a row", ".reg.b32 x,y; mov.u32 x, 3; add.u32 y, x, %r0; mov.u32 %r1, y;", {3, 4});
  gives("function pointer",
        "mov.u64 %d1, fib; .param .b32 p; .param .b32 q; st.param.b32 [p], 7; call (q), %d1, (p), proto; ld.param.b32 "
        "%r1, [q];",
        {13, 13}, fib);
  // Each lane takes a lock in turn: the one that holds it must go on while the others spin in front of it.
  Device device;
  const std::string lock =
      "L: atom.global.cas.b32 %r2, [%a+256], 0, 1; setp.ne.s32 %p1, %r2, 0; @%p1 bra L; ld.volatile.global.u32 %r3, "
      "[%a+260]; add.u32 %r3, %r3, 1; st.volatile.global.u32 [%a+260], %r3; membar.gl; st.volatile.global.u32 "
      "[%a+256], 0;";
  CHECK(run(kernel_of(lock), device).empty());
  CHECK(device.word(65) == 32);
}

void test_memory() {
  gives("shared",
        "mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %r0; bar.sync 0; "
        "xor.b32 %r3, %r3, 4; add.u32 %r4, %r2, %r3; ld.shared.u32 %r1, [%r4];",
        {1, 0, 3, 2}, ".shared .align 4 .b8 s[128];\n");
  gives("generic shared", "mov.u64 %d1, s; cvta.shared.u64 %d2, %d1; st.u32 [%d2+4], 17; ld.shared.u32 %r1, [s+4];",
        {17}, ".shared .align 4 .b8 s[128];\n");
  gives("local",
        ".local .align 8 .b8 depot[16]; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1; st.local.u32 [%d1+8], %r0; "
        "ld.u32 %r1, [%d2+8];",
        {0, 1, 2});
  gives("constant", "mul.wide.u32 %d1, %r0, 4; mov.u64 %d2, c; add.u64 %d1, %d1, %d2; ld.const.u32 %r1, [%d1];",
        {5, 6, 7, 8}, ".const .align 4 .u32 c[32] = {5, 6, 7, 8};\n");
  gives("bytes",
        "st.global.u32 [%mine], 0x80ff; ld.global.s8 %r2, [%mine+1]; ld.global.u8 %r3, [%mine]; add.s32 %r1, "
        "%r2, %r3;",
        {127});
  gives("vectors", "st.global.v2.u32 [%a+1024], {4, 5}; ld.global.v2.u32 {%r2, %r1}, [%a+1024];", {5, 5});
  gives("copy",
        "st.global.u32 [%a+512], 99; mov.u32 %r2, s; cp.async.ca.shared.global [%r2], [%a+512], 4; "
        "cp.async.wait_all; ld.shared.u32 %r1, [s];",
        {99}, ".shared .align 16 .b8 s[128];\n");
  gives("heap",
        ".param .b64 size; .param .b64 got; st.param.b64 [size], 8; call (got), malloc, (size); ld.param.b64 %d1, "
        "[got]; st.u32 [%d1], %r0; ld.u32 %r1, [%d1]; st.param.b64 [size], %d1; call free, (size);",
        {0, 1, 2}, ".extern .func (.param .b64 r) malloc(.param .b64 s);\n.extern .func free(.param .b64 a);\n");
  Device device;
  CHECK(run(kernel_of("atom.global.add.u32 %r1, [%a], 1; red.global.max.s32 [%a+4], %r0; atom.global.inc.u32 %r2, "
                      "[%a+8], 4;"),
            device)
            .empty());
  CHECK(device.word(0) == 32 && device.word(1) == 31 && device.word(2) == 32 % 5);
  CHECK(run(kernel_of("mov.u32 %r2, %dynamic_smem_size; st.global.u32 [%a], %r2; st.shared.u32 [d+60], 3;",
                      ".extern .shared .align 16 .b8 d[];\n"),
            device, {.shared = 64})
            .empty());
  CHECK(device.word(0) == 64);
}

void test_warp() {
  gives("shuffle", "shfl.sync.down.b32 %r1|%p1, %r0, 1, 31, -1;", {1, 2, 3});
  gives("butterfly", "shfl.sync.bfly.b32 %r1, %r0, 2, 31, -1;", {2, 3, 0, 1});
  gives("segment", "shfl.sync.idx.b32 %r1, %r0, 1, 6175, -1;", {1, 1, 1, 1, 1, 1, 1, 1, 9});
  gives("vote", "setp.lt.u32 %p1, %r0, 3; vote.sync.ballot.b32 %r1, %p1, -1;", {7, 7});
  gives("match", "and.b32 %r2, %r0, 1; match.any.sync.b32 %r1, %r2, -1;", {0x55555555, 0xaaaaaaaa});
  gives("redux", "redux.sync.add.s32 %r1, %r0, -1;", {496, 496});
  // Lanes of both sides of a branch wait for each other in one instruction of each side.
  gives("lanes on two paths",
        "setp.lt.u32 %p1, %r0, 16; @%p1 bra A; bar.warp.sync -1; mov.u32 %r1, 2; bra B;\nA: bar.warp.sync -1; mov.u32 "
        "%r1, 1;\nB:",
        {1, 1});
  gives("barrier vote", "setp.eq.u32 %p1, %r0, 5; barrier.red.popc.u32 %r1, 0, %p1;", {1, 1});
  gives("special", "mov.u32 %r1, %smid;", {7, 7});
  Device device;
  CHECK(run(kernel_of("mov.u32 %r1, %ctaid.x; mad.lo.u32 %r1, %r1, 64, %r0; mul.wide.u32 %d1, %r1, 4; add.u64 %d1, "
                      "%d1, %a; mov.u32 %r2, %smid; st.global.u32 [%d1], %r2;"),
            device, {.blocks = 2, .threads = 64})
            .empty());
  CHECK(device.word(0) == 7 && device.word(127) == 8);
}

void test_waiting() {
  // Each of three blocks waits for all: they take turns.
  const std::string together =
      "setp.ne.u32 %p1, %r0, 0; @%p1 bra B; atom.global.add.u32 %r1, [%a], 1;\nL: ld.volatile.global.u32 %r2, [%a]; "
      "setp.lt.u32 %p2, %r2, 3; @%p2 bra L;\nB: bar.sync 0; red.global.add.u32 [%a+4], 1;";
  Device device;
  CHECK(run(kernel_of(together), device, {.blocks = 3}).empty());
  CHECK(device.word(1) == 96);
  // cooperative_groups::grid_group::sync, twice.
  Device grid;
  CHECK(run(kernel_of(
                ".param .b64 handle; .param .b32 scope; .param .b64 group; .param .b32 flags; .param .b32 answer; call "
                "(handle), cudaCGGetIntrinsicHandle, (scope); ld.param.b64 %d1, [handle]; st.param.b64 [group], "
                "%d1; st.param.b32 [flags], 0; red.global.add.u32 [%a], 1; call (answer), cudaCGSynchronize, "
                "(group, flags); ld.volatile.global.u32 %r1, [%a]; red.global.max.u32 [%a+4], %r1; call (answer), "
                "cudaCGSynchronize, (group, flags); red.global.add.u32 [%a], 1;",
                ".extern .func (.param .b64 h) cudaCGGetIntrinsicHandle(.param .b32 s);\n"
                ".extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);\n"),
            grid, {.blocks = 4})
            .empty());
  CHECK(grid.word(0) == 256 && grid.word(1) == 128);
  Device alone;
  CHECK(contains(run(kernel_of(together), alone, {.blocks = 2}), "stuck, kernel k, block (0, 0, 0), line"));
  // A loop that counts ends by itself, and one that waits for the time does too.
  CHECK(run(kernel_of("mov.u32 %r1, 0;\nL: ld.volatile.global.u32 %r2, [%a]; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, "
                      "%r1, 100000; @%p1 bra L;"),
            device)
            .empty());
  CHECK(run(kernel_of("mov.u64 %d1, %globaltimer;\nL: mov.u64 %d2, %globaltimer; sub.u64 %d2, %d2, %d1; setp.lt.u64 "
                      "%p1, %d2, 100000; @%p1 bra L;"),
            device)
            .empty());
  CHECK(contains(run(kernel_of("setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 0; bra B;\nA: bar.sync 1;\nB:"), device,
                     {.threads = 64}),
                 "each thread waits at a barrier"));
}

void test_ends() {
  Device device;
  CHECK(contains(run(kernel_of("mov.u64 %d1, 64;\nld.global.u32 %r1, [%d1];"), device),
                 "a read of 4 bytes at 0x40 by thread 0: no memory is there, kernel k, block (0, 0, 0), line 17"));
  CHECK(contains(run(kernel_of("st.global.u32 [%a+2], 1;"), device), "not aligned"));
  CHECK(contains(run(kernel_of("st.shared.u32 [s+16], 1;", ".shared .align 4 .b8 s[4];\n"), device),
                 "outside of the block's shared memory"));
  CHECK(contains(run(kernel_of("trap;"), device), "trap"));
  CHECK(run(kernel_of("\n\nwgmma.fence.sync.aligned;"), device) == "unknown: line 18: wgmma.fence.sync.aligned;");
  CHECK(contains(run(kernel_of("add.s32.odd %r1, %r1, 1;"), device), "unknown: line 16: add.s32.odd"));
  CHECK(contains(run(head + ".visible .entry k()\n{\n.texref t;\n}\n", device), "unknown: line 6: .texref t;"));
  const std::string print =
      ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .align 1 .b8 text[20] = {105, 32, "
      "37, 100, 32, 37, 46, 49, 102, 32, 37, 115, 10};\n.global .align 1 .b8 word[3] = {104, 105};\n";
  CHECK(
      run(kernel_of(".local .align 8 .b8 depot[24]; .param .b64 f; .param .b64 b; .param .b32 c; setp.ne.u32 %p1, "
                    "%r0, 0; @%p1 bra E; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1; st.local.u32 [%d1], -3; mov.u64 "
                    "%d4, 0d3FF8000000000000; st.local.u64 [%d1+8], %d4; mov.u64 %d3, word; st.local.u64 [%d1+16], "
                    "%d3; mov.u64 %d3, text; st.param.b64 [f], %d3; st.param.b64 [b], %d2; call (c), vprintf, (f, "
                    "b);\nE:",
                    print),
          device)
          .empty());
  CHECK(device.printed == "i -3 1.5 hi\n");
}

}  // namespace

int main() {
  test_arithmetic();
  test_control();
  test_memory();
  test_warp();
  test_waiting();
  test_ends();
  return software_driver::test::summary("ptx_test");
}
