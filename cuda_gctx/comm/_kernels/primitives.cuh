// The instructions of the hardware that the kernels use, one function for each. The tests replace this file with one
// for the CPU.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads, 1) name
#define DEVICE __device__ __forceinline__
// A function that is compiled apart and linked.
#define LINKED extern "C" __device__

struct alignas(16) Vector {
  u32 word[4];
};

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 thread_count() { return blockDim.x; }
DEVICE u32 block_index() { return blockIdx.x; }
DEVICE u32 block_count() { return gridDim.x; }

// Programmatic dependent launch: the kernel may begin before the one before it in the stream has ended, if it was
// launched so. The first waits until that one has ended and what it wrote can be seen; the second lets the next kernel
// begin.
DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

DEVICE void sync_block() { __syncthreads(); }
// A barrier of the block; whether `mine` is true for all of its threads.
DEVICE bool all_of_block(bool mine) { return __syncthreads_and(mine); }

// A barrier of the block, behind which all of its threads have what the first one has.
DEVICE u32 of_first(u32 mine) {
  __shared__ u32 word;
  if (threadIdx.x == 0) word = mine;
  __syncthreads();
  return word;
}

// A barrier of the warp, which orders accesses to memory.
DEVICE void sync_warp() { __syncwarp(); }

// Whether `mine` is true for all threads of the warp: they wait for each other, and nothing is ordered by that.
DEVICE bool all_of_warp(bool mine) { return __all_sync(0xffffffffu, mine); }

// For four threads, all of them in a warp that is here as a whole: the words of the first three.
DEVICE Vector last_words(u32 word) {
  return {__shfl_sync(0xffffffffu, word, 0, 4), __shfl_sync(0xffffffffu, word, 1, 4),
          __shfl_sync(0xffffffffu, word, 2, 4), 0};
}

// The other way: the first three get a word each of what the fourth has.
DEVICE u32 word_of_last(const Vector& words) {
  u32 first = __shfl_sync(0xffffffffu, words.word[0], 3, 4), second = __shfl_sync(0xffffffffu, words.word[1], 3, 4),
      third = __shfl_sync(0xffffffffu, words.word[2], 3, 4);
  u32 place = thread_index() % 4;
  return place == 0 ? first : place == 1 ? second : third;
}

// The word of the next thread, in a warp that is here as a whole.
DEVICE u32 word_of_next(u32 word) { return __shfl_down_sync(0xffffffffu, word, 1); }

// Ends all that runs in the context, with an error.
DEVICE void stop_device() { asm volatile("trap;"); }

DEVICE u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// ---- words that other ranks read or write

DEVICE void store_relaxed(u64 address, u64 value) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

DEVICE u64 load_relaxed(u64 address) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

// Four words in one access of 128 bits: who sees one of them sees all.
DEVICE void store_packet(u64 address, Vector packet) {
  asm volatile(
      "{\n .reg .b64 low, high;\n .reg .b128 packet;\n"
      " mov.b64 low, {%1, %2};\n mov.b64 high, {%3, %4};\n mov.b128 packet, {low, high};\n"
      " st.relaxed.sys.global.b128 [%0], packet;\n}" ::"l"(address),
      "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])
      : "memory");
}

DEVICE Vector load_packet(u64 address) {
  Vector packet;
  asm volatile(
      "{\n .reg .b64 low, high;\n .reg .b128 packet;\n ld.relaxed.sys.global.b128 packet, [%4];\n"
      " mov.b128 {low, high}, packet;\n mov.b64 {%0, %1}, low;\n mov.b64 {%2, %3}, high;\n}"
      : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
      : "l"(address)
      : "memory");
  return packet;
}

// Two words of 64 bits: each of them is seen as a whole, in any order.
DEVICE void store_halves(u64 address, Vector packet) {
  asm volatile(
      "{\n .reg .b64 low, high;\n mov.b64 low, {%1, %2};\n mov.b64 high, {%3, %4};\n"
      " st.relaxed.sys.global.v2.b64 [%0], {low, high};\n}" ::"l"(address),
      "r"(packet.word[0]), "r"(packet.word[1]), "r"(packet.word[2]), "r"(packet.word[3])
      : "memory");
}

DEVICE Vector load_halves(u64 address) {
  Vector packet;
  asm volatile(
      "{\n .reg .b64 low, high;\n ld.relaxed.sys.global.v2.b64 {low, high}, [%4];\n"
      " mov.b64 {%0, %1}, low;\n mov.b64 {%2, %3}, high;\n}"
      : "=r"(packet.word[0]), "=r"(packet.word[1]), "=r"(packet.word[2]), "=r"(packet.word[3])
      : "l"(address)
      : "memory");
  return packet;
}

DEVICE void store_release(u64 address, u64 value) {
  asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

DEVICE u64 load_acquire(u64 address) {
  u64 value;
  asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

DEVICE void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// ---- words of this rank alone

DEVICE u32 load_own(u64 address) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

DEVICE void store_own(u64 address, u64 value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

DEVICE u64 add_own(u64 address, u64 value) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(address), "l"(value) : "memory");
  return before;
}

DEVICE u64 swap_own_word_if(u64 address, u64 expected, u64 value) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(address), "l"(expected), "l"(value)
               : "memory");
  return before;
}

DEVICE u32 swap_own_if(u64 address, u32 expected, u32 value) {
  u32 before;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return before;
}

// ---- tensors

DEVICE Vector load_vector(u64 address) { return *reinterpret_cast<const Vector*>(address); }
DEVICE void store_vector(u64 address, Vector value) { *reinterpret_cast<Vector*>(address) = value; }
// Where other ranks may store at the same time: what stays is one or the other.
DEVICE void overwrite_vector(u64 address, Vector value) { store_vector(address, value); }
// The same in shared memory: number `at` of a tile.
DEVICE Vector load_tile(const void* tile, u32 at) { return static_cast<const Vector*>(tile)[at]; }
DEVICE void store_tile(void* tile, u32 at, Vector value) { static_cast<Vector*>(tile)[at] = value; }

// ---- shared memory, bulk copies and the barriers that they complete on

DEVICE unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

DEVICE void barrier_init(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes the barriers just initialised known to the copy engine of the SM, before the barrier of the block.
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

DEVICE void barrier_arrive_and_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Whether the phase of that parity is over. May block for a time that the hardware limits.
DEVICE bool barrier_try_wait(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n .reg .pred over;\n"
      " mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 over, [%1], %2;\n"
      " selp.b32 %0, 1, 0, over;\n}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

DEVICE void bulk_load(void* to, u64 from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

DEVICE void bulk_store(u64 to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}

DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the `ALLOWED` newest groups of stores of this thread have read their shared memory.
template <int ALLOWED>
DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(ALLOWED) : "memory");
}

// Waits until all stores of this thread are complete.
DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders ordinary accesses and those of bulk copies, in both directions and for all memory.
DEVICE void fence_bulk() { asm volatile("fence.proxy.async;" ::: "memory"); }

// The same for the shared memory of the block alone.
DEVICE void fence_bulk_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the numbers of a word, of the tensor's type, the first one in the lowest bits

struct Numbers {
  float of[NUMBERS_OF_WORD];
};

#if ELEMENT == BFLOAT16

DEVICE Numbers widen(u32 word) { return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)}; }

DEVICE u32 narrow(const Numbers& numbers) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(numbers.of[1]), "f"(numbers.of[0]));
  return word;
}

#elif ELEMENT == FLOAT16

DEVICE Numbers widen(u32 word) {
  Numbers numbers;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
      : "=f"(numbers.of[0]), "=f"(numbers.of[1])
      : "r"(word));
  return numbers;
}

DEVICE u32 narrow(const Numbers& numbers) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(numbers.of[1]), "f"(numbers.of[0]));
  return word;
}

#elif ELEMENT == FLOAT32

DEVICE Numbers widen(u32 word) { return {__uint_as_float(word)}; }
DEVICE u32 narrow(const Numbers& numbers) { return __float_as_uint(numbers.of[0]); }

#elif ELEMENT == FLOAT8_E4M3FN

// Each of them is one of fp16, too.
DEVICE Numbers widen(u32 word) {
  Numbers numbers;
  asm("{\n .reg .b16 low, high;\n .reg .b16 a, b;\n .reg .b32 pair;\n mov.b32 {low, high}, %4;\n"
      " cvt.rn.f16x2.e4m3x2 pair, low;\n mov.b32 {a, b}, pair;\n cvt.f32.f16 %0, a;\n cvt.f32.f16 %1, b;\n"
      " cvt.rn.f16x2.e4m3x2 pair, high;\n mov.b32 {a, b}, pair;\n cvt.f32.f16 %2, a;\n cvt.f32.f16 %3, b;\n}"
      : "=f"(numbers.of[0]), "=f"(numbers.of[1]), "=f"(numbers.of[2]), "=f"(numbers.of[3])
      : "r"(word));
  return numbers;
}

// What is too large becomes the largest number: the type has no infinity.
DEVICE u32 narrow(const Numbers& numbers) {
  u32 word;
  asm("{\n .reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n mov.b32 %0, {low, high};\n}"
      : "=r"(word)
      : "f"(numbers.of[0]), "f"(numbers.of[1]), "f"(numbers.of[2]), "f"(numbers.of[3]));
  return word;
}

#endif

// Rounded after each addition, in the order written: nothing is fused or reassociated.
DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
