// The kernels' primitives for the CPU, as the kernels see them: each access to memory is a place where another thread
// may go on, and goes through the memory of cpu_memory.hpp. What stands behind them is in cpu_fibers.cpp, which is
// compiled once for all kernels, because the standard library takes most of the time of a compilation.
#ifndef CPU_PRIMITIVES
#define CPU_PRIMITIVES

#include <stdint.h>

typedef unsigned int u32;
typedef unsigned long long u64;

#define __grid_constant__
#define KERNEL(name, threads) static void name
#define DEVICE inline
#define LINKED extern "C"

struct alignas(16) Vector {
  u32 word[4];
};

u32 thread_index();
u32 thread_count();
u32 block_index();
u32 block_count();
void wait_for_previous_kernel();
void let_next_kernel_begin();
bool all_of_block(bool mine);
u32 of_first(u32 mine);
void sync_warp();
bool all_of_warp(bool mine);
Vector last_words(u32 word);
u32 word_of_last(const Vector& words);
u32 word_of_next(u32 word);
u64 nanoseconds();
void stop_device();
DEVICE void sync_block() { all_of_block(true); }

void store_relaxed(u64 address, u64 value);
u64 load_relaxed(u64 address);
void store_packet(u64 address, Vector packet);
Vector load_packet(u64 address);
void store_halves(u64 address, Vector packet);
Vector load_halves(u64 address);
void store_release(u64 address, u64 value);
u64 load_acquire(u64 address);
void fence_device();
void fence_system();
u32 load_own(u64 address);
void store_own(u64 address, u64 value);
u64 add_own(u64 address, u64 value);
u64 swap_own_word_if(u64 address, u64 expected, u64 value);
u32 swap_own_if(u64 address, u32 expected, u32 value);

Vector load_vector(u64 address);
void store_vector(u64 address, Vector value);
void overwrite_vector(u64 address, Vector value);
Vector load_tile(const void* tile, u32 at);
void store_tile(void* tile, u32 at, Vector value);

unsigned char* dynamic_shared();

void barrier_init(u64* barrier, u32 arrivals);
void barrier_init_done();
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
void fence_bulk();
void fence_bulk_shared();

// ---- What takes the place of a primitive that is taken out

extern "C" u32 taken_out;

DEVICE void nothing() {}
DEVICE bool alone(bool mine) { return mine; }
DEVICE u32 of_own(u32 mine) { return mine; }
void arrive_without_release(u64* barrier);
void store_packet_in_halves(u64 address, Vector packet);
bool try_wait_without_acquire(u64* barrier, u32 parity);

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
  u32 is_programmatic;  // it may begin before the kernel before it has ended
  u32 is_unordered;     // nothing orders it behind what is before it
  u32 late;             // turns of other fibers before the kernel begins
};

struct Stream;

// Begins the blocks of one kernel, which takes the address of its arguments.
void begin_kernel(Stream& stream, void (*kernel)(const void*), const HostCall& call, u32 seed);

// Begins the kernel of a call, by its number: written by cpu_kernels.py for the kernels that are in a library.
typedef void BeginCall(Stream& stream, const HostCall& call, u32 seed);
extern "C" BeginCall begin_call;

#endif
