// Small messages. Each rank sends its input to every rank that needs it, in packets that carry the epoch, and sums what it
// receives in the order of the plan. Slots are indexed by element, so that grids may differ between ranks and calls.
//
// Why two slots are enough. A rank writes to a slot of epoch e again in call e + 2. It has then finished call e + 1, so
// it has received packets of e + 1 from every rank; each of them sends those after its call e has ended, calls being in
// stream order. The values which that call read had been returned by then: a later store cannot change them.
//
// Why no packet is taken for one of the same epoch in an earlier round of the epochs. A rank clears what it has stored,
// twice in a round: at the end of call e the slots of e - 1, which all ranks have ended, because they have sent packets
// of e. Those that finish call e + 1 know that they are clear. So what a slot has is younger than half a round.
#pragma once

DEVICE u64 header_of(u64 base, u32 epoch, u32 source) {
  return base + MAILBOXES + source * MAILBOX_BYTES + MAILBOX_HEADER + (epoch & 1) * 8;
}

// A word of the data of a rank's packet. Selected, not indexed: `rank` is a constant, the own rank is not.
DEVICE u32 word_of(const Call& call, u32 rank, u32 place, const Vector& mine, const Vector (&theirs)[WORLD - 1]) {
  u32 value = mine.word[place];
  if (rank + 1 < WORLD && rank < call.rank) value = theirs[rank < WORLD - 1 ? rank : 0].word[place];
  if (rank > 0 && rank > call.rank) value = theirs[rank > 0 ? rank - 1 : 0].word[place];
  return value;
}

// The number of different parts of the input that are sent.
constexpr u32 PARTS = SCATTERS ? WORLD - 1 : 1;

// The input of `BATCH` packets of this thread.
template <u32 BATCH>
DEVICE void load_parts(const OneExchange& a, const Packets& packets, u32 begin, Vector (&part)[PARTS][BATCH]) {
#pragma unroll
  for (u32 hop = 1; hop <= PARTS; ++hop) {
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
      u32 packet = begin + step * packets.stride;
      u64 input = a.input + a.chunk[successor(a.call, hop)] * a.block_stride;
      part[hop - 1][step] = {};
      if (packets.has(packet)) part[hop - 1][step] = load_vector(input + Packets::vector_of(packet) * 16ull);
    }
  }
}

// part: of the batch.
template <u32 BATCH>
DEVICE void send_batch(const OneExchange& a, const Packets& packets, u32 epoch, u32 begin, Vector (&part)[PARTS][BATCH]) {
#pragma unroll
  for (u32 hop = 1; hop < WORLD; ++hop) {
    u32 target = successor(a.call, hop);
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
      u32 packet = begin + step * packets.stride;
      Vector& words = part[(hop - 1) % PARTS][step];
      if (hop <= PARTS) words = packed(words);
      if (packets.has(packet)) send_packet(slot_at(a.call, target, epoch, packet), stamped(words, epoch));
    }
  }
}

// In steps of `BATCH` packets of each thread, so that as many accesses are under way. A batch begins for all threads of
// a warp or for none of them: they exchange words. part: the first batch.
template <u32 BATCH>
DEVICE void send(const OneExchange& a, const Packets& packets, u32 epoch, Vector (&part)[PARTS][BATCH]) {
  send_batch<BATCH>(a, packets, epoch, packets.first, part);
  for (u32 begin = packets.first + BATCH * packets.stride; begin - thread_index() % 32 < packets.count;
       begin += BATCH * packets.stride) {
    load_parts<BATCH>(a, packets, begin, part);
    send_batch<BATCH>(a, packets, epoch, begin, part);
  }
}

// Receives a batch, and stores its sums. Returns whether all packets have come. IS_FIRST: and the headers of all ranks, which
// find out ranks that were called with something else. Each block waits for all headers before it stores anything to the
// output: packets of another call have sums as well. The first warp has a thread for each rank.
template <u32 BATCH, bool IS_FIRST>
DEVICE bool receive_batch(const OneExchange& a, const Packets& packets, u32 epoch, u32 begin) {
  const Call& call = a.call;
  const u64 own = call.peer[call.rank];
  // For each block of the output, the world ranks in the order in which they are added. Constants: arrays that are
  // indexed by variables would live in local memory.
  constexpr u32 order[BLOCKS][ADDENDS] = ORDER;
  Vector mine[BATCH], theirs[BATCH][WORLD - 1];
#pragma unroll
  for (u32 step = 0; step < BATCH; ++step) {
    u32 packet = begin + step * packets.stride;
    u64 input = a.input + a.chunk[call.rank] * a.block_stride;
    mine[step] = {};
    if (packets.has(packet)) mine[step] = load_vector(input + Packets::vector_of(packet) * 16ull);
    // Packets that do not exist count as received.
#pragma unroll
    for (Vector& one : theirs[step]) one = stamped({}, packets.has(packet) ? ~epoch : epoch);
  }
  bool is_late = false, awaits_header = IS_FIRST && thread_index() < WORLD && thread_index() != call.rank;
  Deadline deadline;
  for (bool is_missing = true; is_missing && !is_late;) {
    u64 header = 0;
    if (awaits_header) header = load_relaxed(header_of(own, epoch, thread_index()));
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
#pragma unroll
      for (u32 other = 0; other < WORLD - 1; ++other) {
        Vector& one = theirs[step][other];
        u64 slot = slot_of(own, epoch, other, begin + step * packets.stride);
        if (!is_of(one, epoch)) one = receive_packet(slot);
      }
    }
    if (awaits_header && epoch_of(header) == epoch) {
      awaits_header = false;
      is_late = payload_of(header) != call.signature;
      if (is_late) report(call, FAULT_MISMATCH, thread_index(), payload_of(header));
    }
    is_missing = awaits_header;
    u32 missed = thread_index();
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
#pragma unroll
      for (u32 other = 0; other < WORLD - 1; ++other) {
        if (is_of(theirs[step][other], epoch)) continue;
        is_missing = true;
        missed = rank_of(call, other);
      }
    }
    if (is_missing && !is_late && deadline.passed(call)) {
      report(call, FAULT_TIMEOUT, missed, epoch);
      is_late = true;
    }
  }
  const bool received = all_of_warp(!is_late);
  if (!(IS_FIRST ? all_of_block(received) : received)) return false;
  // In place, a thread stores to what a neighbour has read as well.
  sync_warp();
#pragma unroll
  for (u32 step = 0; step < BATCH; ++step) {
    u32 packet = begin + step * packets.stride;
    mine[step] = packed(mine[step]);
#pragma unroll
    for (u32 block = 0; block < BLOCKS; ++block) {
      Vector result;
#pragma unroll
      for (u32 word = 0; word < DATA_WORDS; ++word) {
        const u32 place = place_of(word);
        // Copies a single addend, and does not convert it, whatever its bits mean.
        result.word[place] = word_of(call, order[block][0], place, mine[step], theirs[step]);
        if (ADDENDS == 1) continue;
        Sum sum;
        sum.start(result.word[place]);
#pragma unroll
        for (u32 addend = 1; addend < ADDENDS; ++addend)
          sum.include(word_of(call, order[block][addend], place, mine[step], theirs[step]));
        result.word[place] = sum.value();
      }
      result = unpacked(result);
      if (packets.has(packet) && Packets::stores_vector(packet))
        store_vector(a.output + block * a.block_stride + Packets::vector_of(packet) * 16ull, result);
    }
  }
  return true;
}

// The first batch is that of all warps, those without packets too: there is a barrier in it.
template <u32 BATCH>
DEVICE bool receive(const OneExchange& a, const Packets& packets, u32 epoch) {
  if (!receive_batch<BATCH, true>(a, packets, epoch, packets.first)) return false;
  for (u32 begin = packets.first + BATCH * packets.stride; begin - thread_index() % 32 < packets.count;
       begin += BATCH * packets.stride)
    if (!receive_batch<BATCH, false>(a, packets, epoch, begin)) return false;
  return true;
}

// What this thread would have stored.
DEVICE void spoil_own(const OneExchange& a, const Packets& packets) {
  const Vector nothing_right = no_numbers(a.call);
  for (u32 packet = packets.first; packet < packets.count; packet += packets.stride)
    for (u32 block = 0; block < BLOCKS; ++block)
      if (packets.has(packet) && Packets::stores_vector(packet))
        overwrite_vector(a.output + block * a.block_stride + Packets::vector_of(packet) * 16ull, nothing_right);
}

// Twice in a round of the epochs, once for each of the two slots.
DEVICE bool clears(u32 epoch) { return (epoch | 0x80000001u) == 0xffffffffu; }

// What this rank has stored in the slots of the call before. By all blocks, each of which has received from every rank.
DEVICE void clear_slots(const Call& call, u32 epoch) {
#pragma unroll
  for (u32 hop = 1; hop < WORLD; ++hop)
    for (u32 packet = block_index() * thread_count() + thread_index(); packet < SLOT_BYTES / 16;
         packet += block_count() * thread_count())
      send_packet(slot_at(call, successor(call, hop), epoch - 1, packet), {});
}

// Returns whether the call is done, and its epoch.
template <u32 BATCH>
DEVICE bool exchange(const OneExchange& a, const Packets& packets, u64 word, u32& epoch) {
  const Call& call = a.call;
  // The input is under way while the word is taken.
  Vector part[PARTS][BATCH];
  load_parts<BATCH>(a, packets, packets.first, part);
  epoch = begin_call(call, word);
  if (epoch == 0) return false;
  const bool has_peer = thread_index() < WORLD && thread_index() != call.rank;
  auto send_header = [&](u32 signature) {
    store_relaxed(header_of(call.peer[thread_index()], epoch, call.rank), packet(signature, epoch));
  };
  // Everything is sent before anything is waited for: no rank waits for a packet behind a wait of another rank.
  if (has_peer && block_index() == 0) send_header(call.signature);
  send<BATCH>(a, packets, epoch, part);
  if (receive<BATCH>(a, packets, epoch)) return true;
  // The first block leaves without its headers if it begins behind this fault. All ranks have to learn the mismatch, those
  // with the same call as this one too: by a header that fits to nothing.
  if (has_peer && block_index() != 0 && load_own(call.peer[call.rank] + CONTROL_FAULT) == FAULT_MISMATCH)
    send_header(~call.signature);
  return false;
}

KERNEL(one_exchange, ONE_EXCHANGE_THREADS)(const __grid_constant__ OneExchange a) {
  // Everything below comes after the kernel before it, epochs and inputs included; only the launch overlaps with that.
  wait_for_previous_kernel();
  let_next_kernel_begin();
  const u64 word = a.call.peer[a.call.rank] + CONTROL_PACKET_WORD;
  const u32 vectors = static_cast<u32>(a.block_bytes / 16);
  const Packets packets{Packets::count_of(vectors), block_index() * thread_count() + thread_index(),
                        block_count() * thread_count(), vectors};
  // Where no thread has more than one packet, the short code begins sooner.
  const bool is_short = PACKETS_AT_ONCE == 1 || packets.count <= packets.stride;
  u32 epoch = 0;
  const bool done =
      is_short ? exchange<1>(a, packets, word, epoch) : exchange<PACKETS_AT_ONCE>(a, packets, word, epoch);
  if (!done) spoil_own(a, packets);
  if (!all_of_block(done)) return;
  if (clears(epoch)) {
    clear_slots(a.call, epoch);
    sync_block();
  }
  // Nothing of this call runs any more when the next one may.
  if (thread_index() == 0 && is_last_block(word)) end_call(a.call, word, epoch);
}
