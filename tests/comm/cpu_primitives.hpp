// The kernels' primitives for the CPU, as the kernels see them: each access to shared memory is a place where another
// thread may go on. What stands behind them is in cpu_fibers.cpp, which is compiled once for all kernels, because the
// standard library takes most of the time of a compilation.
#include <cstdint>
#include <cstring>

typedef unsigned int u32;
typedef unsigned long long u64;

#define __grid_constant__
#define KERNEL(name, threads) static void name
#define DEVICE inline
#define LINKED extern "C"

struct alignas(16) Vector {
  u32 word[4];
};

// Lets another thread go on, or not.
void pause_at_random();

u32 thread_index();
u32 thread_count();
u32 block_index();
u32 block_count();
bool all_of_block(bool mine);
bool all_of_warp(bool mine);
Vector last_words(u32 word);
u32 word_of_last(const Vector& words);
u64 nanoseconds();
DEVICE void sync_block() { all_of_block(true); }
// The kernels of a rank run one after the other here.
DEVICE void wait_for_previous_kernel() {}
DEVICE void let_next_kernel_begin() {}

inline u64* at(u64 address) { return reinterpret_cast<u64*>(address); }
inline u32* at32(u64 address) { return reinterpret_cast<u32*>(address); }

DEVICE void store_relaxed(u64 address, u64 value) {
  pause_at_random();
  *at(address) = value;
}
DEVICE u64 load_relaxed(u64 address) {
  pause_at_random();
  return *at(address);
}
DEVICE void store_packet(u64 address, Vector packet) {
  pause_at_random();
  *reinterpret_cast<Vector*>(address) = packet;
}
DEVICE Vector load_packet(u64 address) {
  pause_at_random();
  return *reinterpret_cast<const Vector*>(address);
}
DEVICE void store_release(u64 address, u64 value) {
  pause_at_random();
  *at(address) = value;
}
DEVICE u64 load_acquire(u64 address) {
  pause_at_random();
  return *at(address);
}
DEVICE void fence_device() {}
DEVICE void fence_system() {}
DEVICE u32 load_own(u64 address) { return *at32(address); }
DEVICE void store_own(u64 address, u32 value) { *at32(address) = value; }
DEVICE u32 add_own(u64 address, u32 value) {
  pause_at_random();
  u32 old = *at32(address);
  *at32(address) = old + value;
  return old;
}
DEVICE u32 swap_own_if(u64 address, u32 expected, u32 value) {
  u32 old = *at32(address);
  if (old == expected) {
    *at32(address) = value;
  }
  return old;
}

DEVICE Vector load_vector(u64 address) { return *reinterpret_cast<const Vector*>(address); }
DEVICE void store_vector(u64 address, Vector value) {
  pause_at_random();
  *reinterpret_cast<Vector*>(address) = value;
}

unsigned char* dynamic_shared();

void barrier_init(u64* barrier, u32 arrivals);
DEVICE void barrier_init_done() {}
void barrier_arrive(u64* barrier);
void barrier_arrive_and_expect(u64* barrier, u32 bytes);
bool barrier_try_wait(u64* barrier, u32 parity);
void bulk_load(void* to, u64 from, u32 bytes, u64* barrier);
void bulk_store(u64 to, const void* from, u32 bytes);
void bulk_commit();
void bulk_wait_read_of_all_but(u32 groups);
template <int ALLOWED>
DEVICE void bulk_wait_read() {
  bulk_wait_read_of_all_but(ALLOWED);
}
void bulk_wait();
DEVICE void fence_bulk() {}
DEVICE void fence_bulk_shared() {}

// ---- Runs of kernels

struct HostCopy {
  u64 to, from, bytes;
};

struct HostCall {
  u32 kernel, blocks, threads, present;
  const void* arguments;
  const HostCopy* before;  // the kernel
  const HostCopy* after;
  u32 copies_before, copies_after;
};

struct World;

// Runs the blocks of one kernel, which takes the address of its arguments.
void run_kernel(World& world, u32 rank, void (*kernel)(const void*), const HostCall& call, u32 seed);

// The kernel of a call, by its number: written by cpu_kernels.py for the kernels that are in the library.
void run_call(World& world, u32 rank, const HostCall& call, u32 seed);
