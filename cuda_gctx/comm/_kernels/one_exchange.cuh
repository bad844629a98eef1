// Small messages. Each rank sends its input to every rank that needs it, as packets of 96 data bits and an epoch, and
// sums what it receives in the order of the plan. Slots are indexed by element, so that grids may differ between ranks
// and calls.
//
// Why two slots are enough. A rank writes to a slot of epoch e again in call e + 2. It has then finished call e + 1, so
// it has received packets of e + 1 from every rank; each of them sends those after its call e has ended, calls being in
// stream order. The values which that call read had been returned by then: a later store cannot change them.
//
// Tensors are read and written in vectors of four words. Four packets, of four neighbouring threads, carry three
// vectors: the first three packets the first three words of a vector each, the fourth one the last words of all three.
#pragma once

struct OneExchange {
  Call call;
  u64 input;
  u64 output;
  u64 block_bytes;   // of one block of the output, or of the piece of it that this launch brings; a multiple of 16
  u64 block_stride;  // from one block to the next one, in the input and in the output
  u32 chunk[WORLD];  // which block of the input goes to each rank
};

// The packets of a block, and the thread's place among them. Packet and thread have the same place in their four.
struct Packets {
  u32 vectors;
  u32 count;   // four for three vectors, the last of which may be missing
  u32 first;   // of this thread
  u32 stride;  // to the next one of this thread

  // The vector that the thread reads for a packet. For the fourth, that of the first: it is there if any of them is.
  static DEVICE u32 vector_of(u32 packet) { return packet / 4 * 3 + (packet % 4 < 3 ? packet % 4 : 0); }
  DEVICE bool has(u32 packet) const { return vector_of(packet) < vectors; }
};

// other: the number of the source among the ranks but the one that receives.
DEVICE u64 slot_of(u64 base, u32 epoch, u32 other, u32 packet) {
  return base + SLOTS + (epoch & 1) * ((WORLD - 1) * SLOT_BYTES) + other * SLOT_BYTES + static_cast<u64>(packet) * 16;
}

DEVICE u64 header_of(u64 base, u32 epoch, u32 source) {
  return base + MAILBOXES + source * MAILBOX_BYTES + MAILBOX_HEADER + (epoch & 1) * 8;
}

// Each rank begins with its successor, so that not all of them write to the same one at once.
DEVICE u32 successor(const Call& call, u32 hop) {
  u32 rank = call.rank + hop;
  return rank < WORLD ? rank : rank - WORLD;
}

// The ranks but this one, in order.
DEVICE u32 rank_of(const Call& call, u32 other) { return other + (other >= call.rank); }

// A word of the packet of a rank. Selected, not indexed: `rank` is a constant, the own rank is not.
DEVICE u32 word_of(const Call& call, u32 rank, u32 word, const Vector& mine, const Vector (&theirs)[WORLD - 1]) {
  u32 value = mine.word[word];
  if (rank + 1 < WORLD && rank < call.rank) value = theirs[rank < WORLD - 1 ? rank : 0].word[word];
  if (rank > 0 && rank > call.rank) value = theirs[rank > 0 ? rank - 1 : 0].word[word];
  return value;
}

// From a vector of each of the first three threads to what each of the four threads sends.
DEVICE Vector packed(Vector vector) {
  Vector last = last_words(vector.word[3]);
  return thread_index() % 4 == 3 ? last : vector;
}

// The other way.
DEVICE Vector unpacked(Vector packet) {
  packet.word[3] = word_of_last(packet);
  return packet;
}

// Ranks that were called with something else are found out by the header that each one sends.
DEVICE bool check_header(const Call& call, u32 source, u32 epoch) {
  return wait_word<false>(call, header_of(call.peer[call.rank], epoch, source), source, epoch);
}

// In steps of `BATCH` packets of each thread, so that as many accesses are under way. A batch begins for all threads of
// a warp or for none of them: they exchange words.
template <u32 BATCH>
DEVICE void send(const OneExchange& a, const Packets& packets, u32 epoch) {
  const Call& call = a.call;
  // How many different parts of the input there are to send.
  constexpr u32 PARTS = SCATTERS ? WORLD - 1 : 1;
  for (u32 begin = packets.first; begin - thread_index() % 32 < packets.count; begin += BATCH * packets.stride) {
    Vector part[PARTS][BATCH];
#pragma unroll
    for (u32 hop = 1; hop <= PARTS; ++hop) {
#pragma unroll
      for (u32 step = 0; step < BATCH; ++step) {
        u32 packet = begin + step * packets.stride;
        u64 input = a.input + a.chunk[successor(call, hop)] * a.block_stride;
        part[hop - 1][step] = {};
        if (packets.has(packet)) part[hop - 1][step] = load_vector(input + Packets::vector_of(packet) * 16ull);
      }
    }
#pragma unroll
    for (u32 hop = 1; hop < WORLD; ++hop) {
      u32 target = successor(call, hop);
#pragma unroll
      for (u32 step = 0; step < BATCH; ++step) {
        u32 packet = begin + step * packets.stride;
        Vector& words = part[(hop - 1) % PARTS][step];
        if (hop <= PARTS) words = packed(words);
        words.word[3] = epoch;
        if (packets.has(packet))
          store_packet(slot_of(call.peer[target], epoch, call.rank - (call.rank > target), packet), words);
      }
    }
  }
}

// Whether all packets have come.
template <u32 BATCH>
DEVICE bool receive(const OneExchange& a, const Packets& packets, u32 epoch) {
  const Call& call = a.call;
  const u64 own = call.peer[call.rank];
  // For each block of the output, the world ranks in the order in which they are added. Constants: arrays that are
  // indexed by variables would live in local memory.
  constexpr u32 order[BLOCKS][ADDENDS] = ORDER;
  for (u32 begin = packets.first; begin - thread_index() % 32 < packets.count; begin += BATCH * packets.stride) {
    Vector mine[BATCH], theirs[BATCH][WORLD - 1];
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
      u32 packet = begin + step * packets.stride;
      u64 input = a.input + a.chunk[call.rank] * a.block_stride;
      mine[step] = {};
      if (packets.has(packet)) mine[step] = load_vector(input + Packets::vector_of(packet) * 16ull);
      // What is not there has come.
#pragma unroll
      for (Vector& one : theirs[step]) one = {0, 0, 0, packets.has(packet) ? ~epoch : epoch};
    }
    bool is_late = false;
    Deadline deadline;
    for (bool is_missing = true; is_missing && !is_late;) {
#pragma unroll
      for (u32 step = 0; step < BATCH; ++step) {
#pragma unroll
        for (u32 other = 0; other < WORLD - 1; ++other) {
          Vector& one = theirs[step][other];
          u64 slot = slot_of(own, epoch, other, begin + step * packets.stride);
          if (one.word[3] != epoch) one = load_packet(slot);
        }
      }
      is_missing = false;
      u32 missed = 0;
#pragma unroll
      for (u32 step = 0; step < BATCH; ++step) {
#pragma unroll
        for (u32 other = 0; other < WORLD - 1; ++other) {
          if (theirs[step][other].word[3] == epoch) continue;
          is_missing = true;
          missed = rank_of(call, other);
        }
      }
      if (is_missing && deadline.passed(call)) {
        report(call, FAULT_TIMEOUT, missed, epoch);
        is_late = true;
      }
    }
    if (!all_of_warp(!is_late)) return false;
#pragma unroll
    for (u32 step = 0; step < BATCH; ++step) {
      u32 packet = begin + step * packets.stride;
      mine[step] = packed(mine[step]);
#pragma unroll
      for (u32 block = 0; block < BLOCKS; ++block) {
        Vector result;
#pragma unroll
        for (u32 word = 0; word < 3; ++word) {
          // One addend is copied, not converted, whatever its bits mean.
          result.word[word] = word_of(call, order[block][0], word, mine[step], theirs[step]);
          if (ADDENDS == 1) continue;
          Sum sum;
          sum.start(result.word[word]);
#pragma unroll
          for (u32 addend = 1; addend < ADDENDS; ++addend)
            sum.include(word_of(call, order[block][addend], word, mine[step], theirs[step]));
          result.word[word] = sum.value();
        }
        result = unpacked(result);
        if (packets.has(packet) && packet % 4 < 3)
          store_vector(a.output + block * a.block_stride + Packets::vector_of(packet) * 16ull, result);
      }
    }
  }
  return true;
}

// What this thread would have stored.
DEVICE void spoil_own(const OneExchange& a, const Packets& packets) {
  const Vector nothing_right = no_numbers(a.call);
  for (u32 packet = packets.first; packet < packets.count; packet += packets.stride)
    for (u32 block = 0; block < BLOCKS; ++block)
      if (packets.has(packet) && packet % 4 < 3)
        overwrite_vector(a.output + block * a.block_stride + Packets::vector_of(packet) * 16ull, nothing_right);
}

template <u32 BATCH>
DEVICE bool exchange(const OneExchange& a, const Packets& packets, u32 epoch) {
  const Call& call = a.call;
  const bool has_header = block_index() == 0 && thread_index() < WORLD && thread_index() != call.rank;
  // Everything is sent before anything is waited for: no rank waits for a packet behind a wait of another rank.
  if (has_header) store_relaxed(header_of(call.peer[thread_index()], epoch, call.rank), packet(call.signature, epoch));
  send<BATCH>(a, packets, epoch);
  if (!all_of_warp(!has_header || check_header(call, thread_index(), epoch))) return false;
  return receive<BATCH>(a, packets, epoch);
}

KERNEL(one_exchange, ONE_EXCHANGE_THREADS)(const __grid_constant__ OneExchange a) {
  // Everything below comes after the kernel before it, epochs and inputs included; only the launch overlaps with that.
  wait_for_previous_kernel();
  let_next_kernel_begin();
  const u64 word = a.call.peer[a.call.rank] + CONTROL_PACKET_WORD;
  const u32 epoch = begin_call(a.call, word);
  const u32 vectors = static_cast<u32>(a.block_bytes / 16);
  const Packets packets{vectors, (vectors + 2) / 3 * 4, block_index() * thread_count() + thread_index(),
                        block_count() * thread_count()};
  // Where no thread has more than one packet, the short code begins sooner.
  const bool is_short = PACKETS_AT_ONCE == 1 || packets.count <= packets.stride;
  bool done = epoch != 0;
  if (done) done = is_short ? exchange<1>(a, packets, epoch) : exchange<PACKETS_AT_ONCE>(a, packets, epoch);
  if (!done) spoil_own(a, packets);
  // Nothing of this call runs any more when the next one may.
  if (all_of_block(done) && thread_index() == 0 && is_last_block(word)) end_call(word, epoch);
}
