// Small messages. Each rank sends its input to every rank that needs it, as packets of 32 data bits and an epoch, and sums
// what it receives in the order of the plan. Slots are indexed by element, so that grids may differ between ranks and
// calls.
//
// Why two slots are enough. A rank writes to a slot of epoch e again in call e + 2. It has then finished call e + 1, so it
// has received packets of e + 1 from every rank; each of them sends those after its call e has ended, calls being in
// stream order. The values which that call read had been returned by then: a later store cannot change them.
#pragma once

struct OneExchange {
  Call call;
  u64 input;
  u64 output;
  u64 block_bytes;   // of one block of the output, or of the piece of it that this launch brings; a multiple of 16
  u64 block_stride;  // from one block to the next one, in the input and in the output
  u32 chunk[WORLD];  // which block of the input goes to each rank
};

// The two packets of unit `unit` (8 bytes of data) that `source` sends, in the workspace `base`.
DEVICE u64 slot_of(u64 base, u32 epoch, u32 source, u64 unit) {
  return base + SLOTS + ((epoch & 1) * WORLD + source) * SLOT_BYTES + unit * 16;
}

DEVICE u64 header_of(u64 base, u32 epoch, u32 source) {
  return base + MAILBOXES + source * MAILBOX_BYTES + MAILBOX_HEADER + (epoch & 1) * 8;
}

// Ranks that were called with something else are found out by the header that each one sends.
DEVICE bool check_header(const Call& call, u32 source, u32 epoch) {
  Deadline deadline;
  u64 address = header_of(call.peer[call.rank], epoch, source);
  for (;;) {
    u64 word = load_relaxed(address);
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

KERNEL(one_exchange, ONE_EXCHANGE_THREADS)(const __grid_constant__ OneExchange a) {
  // Everything below comes after the kernel before it, epochs and inputs included; only the launch overlaps with that.
  wait_for_previous_kernel();
  let_next_kernel_begin();
  const Call& call = a.call;
  const u64 own = call.peer[call.rank];
  const bool failed = has_fault(call);
  // The last block to arrive, below, writes the next epoch: by then every thread has read this one.
  const u32 epoch = next_epoch(load_own(own + CONTROL_PACKET_EPOCH));
  if (failed) return;
  // For each block of the output, the world ranks in the order in which they are added. Constants: arrays that are indexed
  // by variables would live in local memory.
  constexpr u32 order[BLOCKS][ADDENDS] = ORDER;

  const u64 units = a.block_bytes / 8;
  const u64 first = static_cast<u64>(block_index()) * thread_count() + thread_index();
  const u64 stride = static_cast<u64>(block_count()) * thread_count();

  // Everything is sent before anything is waited for: no rank waits for a packet behind a wait of another rank.
  if (block_index() == 0 && thread_index() < WORLD && thread_index() != call.rank)
    store_relaxed(header_of(call.peer[thread_index()], epoch, call.rank), packet(call.signature, epoch));
  for (u64 unit = first; unit < units; unit += stride) {
#pragma unroll
    for (u32 hop = 1; hop < WORLD; ++hop) {
      // Each rank begins with its successor, so that not all of them write to the same one at once.
      u32 target = call.rank + hop;
      if (target >= WORLD) target -= WORLD;
      u64 data = load_tensor(a.input + a.chunk[target] * a.block_stride + unit * 8);
      store_relaxed_pair(slot_of(call.peer[target], epoch, call.rank, unit), packet(static_cast<u32>(data), epoch),
                         packet(static_cast<u32>(data >> 32), epoch));
    }
  }

  if (block_index() == 0 && thread_index() < WORLD && thread_index() != call.rank)
    if (!check_header(call, thread_index(), epoch)) return;
  for (u64 unit = first; unit < units; unit += stride) {
    u64 mine = load_tensor(a.input + a.chunk[call.rank] * a.block_stride + unit * 8);
    u32 low[WORLD], high[WORLD];
    Deadline deadline;
    for (bool missing = true; missing;) {
      missing = false;
      u32 missed = 0;
#pragma unroll
      for (u32 source = 0; source < WORLD; ++source) {
        u64 first_word = packet(static_cast<u32>(mine), epoch);
        u64 second_word = packet(static_cast<u32>(mine >> 32), epoch);
        if (source != call.rank) load_relaxed_pair(slot_of(own, epoch, source, unit), first_word, second_word);
        low[source] = payload_of(first_word);
        high[source] = payload_of(second_word);
        if (epoch_of(first_word) != epoch || epoch_of(second_word) != epoch) {
          missing = true;
          missed = source;
        }
      }
      if (missing && deadline.passed(call)) {
        report(call, FAULT_TIMEOUT, missed, epoch);
        return;
      }
    }
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) {
      // One addend is copied, not converted, whatever its bits mean.
      u32 result_low = low[order[block][0]], result_high = high[order[block][0]];
      if (ADDENDS > 1) {
        Sum sum_low, sum_high;
        sum_low.start(result_low);
        sum_high.start(result_high);
#pragma unroll
        for (u32 addend = 1; addend < ADDENDS; ++addend) {
          sum_low.include(low[order[block][addend]]);
          sum_high.include(high[order[block][addend]]);
        }
        result_low = sum_low.value();
        result_high = sum_high.value();
      }
      store_tensor(a.output + block * a.block_stride + unit * 8, static_cast<u64>(result_high) << 32 | result_low);
    }
  }

  sync_block();
  if (thread_index() == 0 && add_own(own + CONTROL_PACKET_ARRIVED, 1) == block_count() - 1) {
    // The next kernel of this rank reads both: the end of this one orders them.
    store_own(own + CONTROL_PACKET_ARRIVED, 0);
    store_own(own + CONTROL_PACKET_EPOCH, epoch);
  }
}
