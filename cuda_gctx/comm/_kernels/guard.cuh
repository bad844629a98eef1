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

// Writes the record of a fault, which the host reads.
DEVICE void write_record(const Call& call, u32 kind, u32 world_rank, u64 detail) {
  store_relaxed(call.fault + 8, detail);
  // Released, so that the host which sees the kind sees the detail.
  store_release(call.fault, static_cast<u64>(kind) << 32 | world_rank);
}

// Faults stay. The first one of a rank is what the host reads; kernels that come later leave at once.
DEVICE void report_world(const Call& call, u32 kind, u32 world_rank, u64 detail) {
  if (swap_own_if(call.peer[call.rank] + CONTROL_FAULT, 0, kind) == 0) write_record(call, kind, world_rank, detail);
}

DEVICE void report(const Call& call, u32 kind, u32 peer, u64 detail) {
  report_world(call, kind, call.first_world_rank + peer, detail);
}

DEVICE bool has_fault(const Call& call) { return load_own(call.peer[call.rank] + CONTROL_FAULT) != 0; }

// One call of a kind runs at a time on a rank: two would have one epoch, and write to the same slots and mailboxes. One
// word has the epoch of the last kernel, the number of the call that runs, and how many blocks of its kernel have arrived
// at their ends. It is read and changed as a whole, so that nothing else orders a kernel behind the one that gave it back.
// A call that is one kernel takes the word in that kernel. A call of several steps takes it in its first one (plan.cuh).
constexpr u32 ARRIVED_BITS = 12;  // the number has the other 20 bits

DEVICE u64 control_word(const Call& call, u32 line) { return call.peer[call.rank] + line * CONTROL_LINE; }
DEVICE u32 running_of(u64 word) { return static_cast<u32>(word) >> ARRIVED_BITS; }
DEVICE u64 taken_by(u64 word, u32 number) { return word | static_cast<u64>(number) << ARRIVED_BITS; }

DEVICE void report_overlap(const Call& call, u32 running) {
  report(call, FAULT_OVERLAP, call.rank, static_cast<u64>(running) << 32 | call.number);
}

// Takes the word for the call, in each of its blocks. Returns the epoch of the call to all threads of the block, or 0 if the
// call may not run. A compare-and-swap changes the word only while no call runs, so a second call leaves no trace in it.
// A call that begins behind a fault leaves none either: the host may be clearing the workspaces.
DEVICE u32 begin_call(const Call& call, u64 word) {
  u32 epoch = 0;
  if (thread_index() == 0) {
    const bool failed = has_fault(call);
    u64 before = load_relaxed(word);
    u32 running = running_of(before);
    while (running == 0 && !call.is_held && !failed) {
      const u64 seen = swap_own_word_if(word, before, taken_by(before, call.number));
      if (seen == before) running = call.number;
      else running = running_of(before = seen);
    }
    if (failed)
      epoch = 0;
    else if (running != call.number)
      report_overlap(call, running);
    else
      epoch = next_epoch(static_cast<u32>(before >> 32));
  }
  return of_first(epoch);
}

// Whether this block is the last one of its call to arrive, for the time `round`: the first one has the number 1. No block
// may arrive in a round before all have arrived in the one before.
DEVICE bool is_last_block(u64 word, u32 round = 1) {
  return (add_own(word, 1) & ((1u << ARRIVED_BITS) - 1)) == round * block_count() - 1;
}

// Gives the word back, so that the next call may run. In a plan, the next kernel of the plan may.
DEVICE void end_call(const Call& call, u64 word, u32 epoch) {
  const u64 free = static_cast<u64>(epoch) << 32;
  store_own(word, call.is_held ? taken_by(free, call.number) : free);
}

// Returns what a call that cannot finish leaves in each part of its output that may be wrong: no numbers, in any type.
// Waits for the record that the host reads, because another kernel may still write it: no output has NaN without a fault.
// `call.stops` ends the device instead.
DEVICE Vector no_numbers(const Call& call) {
  for (u64 start = 0; load_relaxed(call.fault) == 0;) {
    const u64 now = nanoseconds();
    if (start == 0) start = now;
    if (now - start <= call.limit) continue;
    // The host has cleared the record beside this call.
    const u32 kind = swap_own_if(call.peer[call.rank] + CONTROL_FAULT, 0, FAULT_TIMEOUT);
    write_record(call, kind != 0 ? kind : FAULT_TIMEOUT, call.first_world_rank + call.rank, call.number);
  }
  if (call.stops) stop_device();
  return {0x7fff7fff, 0x7fff7fff, 0x7fff7fff, 0x7fff7fff};
}

// Leaves no numbers in a share of an output, number `part` of `parts`. Called by all threads of a block.
DEVICE void spoil(const Call& call, u64 address, u64 bytes, u64 part, u64 parts) {
  const Vector nothing_right = no_numbers(call);
  for (u64 at = (part * thread_count() + thread_index()) * sizeof(Vector); at < bytes;
       at += parts * thread_count() * sizeof(Vector))
    overwrite_vector(address + at, nothing_right);
}

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

// Takes the word for a plan, as soon as no call runs; false after a fault or the time limit. What the call before has read
// and written is behind this plan: the word is released behind it.
DEVICE bool hold(const Call& call, u64 word) {
  Deadline deadline;
  const bool failed = has_fault(call);
  for (;;) {
    const u64 before = load_acquire(word);
    if (failed) return false;
    if (running_of(before) == 0 && swap_own_word_if(word, before, taken_by(before, call.number)) == before) return true;
    if (deadline.passed(call)) {
      report_overlap(call, running_of(before));
      return false;
    }
  }
}

// Gives a word of a plan back, if the plan has it.
DEVICE void give_back(const Call& call, u64 word) {
  const u64 held = load_relaxed(word);
  if (running_of(held) == call.number) store_release(word, held >> 32 << 32);
}

// Waits for the flag of this epoch that `source` writes, and acquires what its rank wrote before; false after a fault. Its
// payload is the signature of what `source` was called with, which must be that of this call.
DEVICE bool wait_flag(const Call& call, u64 address, u32 source, u32 epoch) {
  Deadline deadline;
  for (;;) {
    u64 word = load_acquire(address);
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

// The sums of the numbers of a word, in the order in which they are added; rounded once, by value().
struct Sum {
  Numbers sums;

  DEVICE void start(u32 word) { sums = widen(word); }
  DEVICE void include(u32 word) {
    const Numbers more = widen(word);
#pragma unroll
    for (u32 one = 0; one < NUMBERS_OF_WORD; ++one) sums.of[one] = add(sums.of[one], more.of[one]);
  }
  DEVICE u32 value() const { return narrow(sums); }
};
