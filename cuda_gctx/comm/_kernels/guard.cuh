// What both kernels share: waiting with a time limit, faults, epochs, sums.
#pragma once

// A word of a protocol: 32 bits of payload, and the epoch of the call that wrote them. It is stored and loaded as a
// whole, so a reader that sees the epoch sees the payload: no fence is needed between the two.
DEVICE u64 packet(u32 payload, u32 epoch) { return static_cast<u64>(epoch) << 32 | payload; }
DEVICE u32 payload_of(u64 word) { return static_cast<u32>(word); }
DEVICE u32 epoch_of(u64 word) { return static_cast<u32>(word >> 32); }

// Fresh memory is zero, so that 0 is the epoch of no call. The parity alternates across the wrap too, as the two slots
// need it.
DEVICE u32 next_epoch(u32 epoch) { return epoch == 0xffffffffu ? 2 : epoch + 1; }

// What a rank knows of a call, whichever kernel it runs. Ranks are those that meet in the kernel: all of the world, or
// those of one node.
struct Call {
  u64 peer[WORLD];  // the workspaces, by rank, as this rank has mapped them; its own among them
  u64 fault;        // the record that the host reads
  u64 limit;        // nanoseconds that one wait may take
  u32 rank;
  u32 first_world_rank;  // of the ranks that meet here
  u32 signature;         // of what was called: operation, mode, dtype, size
};

// Faults stay. The first one of a rank is what the host reads; kernels that come later leave at once.
DEVICE void report_world(const Call& call, u32 kind, u32 world_rank, u32 detail) {
  if (swap_own_if(call.peer[call.rank] + CONTROL_FAULT, 0, kind) != 0) return;
  store_relaxed(call.fault + 8, detail);
  // Released, so that the host which sees the kind sees the detail.
  store_release(call.fault, static_cast<u64>(kind) << 32 | world_rank);
}

DEVICE void report(const Call& call, u32 kind, u32 peer, u32 detail) {
  report_world(call, kind, call.first_world_rank + peer, detail);
}

DEVICE bool has_fault(const Call& call) { return load_own(call.peer[call.rank] + CONTROL_FAULT) != 0; }

// The time limit of one wait. Begins when the wait turns out not to be over at once, so that what does not wait reads no
// clock. Reading it takes longer than a poll, and so does asking for faults: both happen once in so many polls.
struct Deadline {
  u64 start = 0;
  u32 polls = 0;

  // Whether to stop waiting: the limit is over, or this rank has a fault already.
  DEVICE bool passed(const Call& call) {
    if (++polls % POLLS_PER_CLOCK != 0) return false;
    if (has_fault(call)) return true;
    u64 now = nanoseconds();
    if (start == 0) start = now;
    return now - start > call.limit;
  }
};

// Waits for the word of this epoch that `source` writes; false after a fault. Its payload is the signature of what
// `source` was called with, which must be that of this call.
template <bool ACQUIRES>
DEVICE bool wait_word(const Call& call, u64 address, u32 source, u32 epoch) {
  Deadline deadline;
  for (;;) {
    u64 word = ACQUIRES ? load_acquire(address) : load_relaxed(address);
    if (epoch_of(word) == epoch) {
      if (payload_of(word) == call.signature) return true;
      report(call, FAULT_MISMATCH, source, payload_of(word));
      return false;
    }
    if (deadline.passed(call)) {
      report(call, FAULT_TIMEOUT, source, epoch);
      return false;
    }
  }
}

// The sum of two numbers a word, in the order in which they are added; rounded once, by value().
struct Sum {
  Pair pair;

  DEVICE void start(u32 word) { pair = widen(word); }
  DEVICE void include(u32 word) {
    Pair more = widen(word);
    pair.low = add(pair.low, more.low);
    pair.high = add(pair.high, more.high);
  }
  DEVICE u32 value() const { return narrow(pair); }
};
