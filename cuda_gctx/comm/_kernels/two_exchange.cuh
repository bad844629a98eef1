// Large messages. Each rank fetches its share of the inputs of its sources, sums it and stores the sum to its targets,
// through tiles in shared memory that bulk copies fill and empty. One thread moves, the others add.
//
// Flags at the start and at the end alone, both with the epoch of the call:
// - A rank sends START when its kernel runs: its input is complete then, and nothing reads its old output any more,
//   because calls and copies are in stream order. No kernel touches the memory of another rank before it has seen that
//   rank's START. Copies between ranks: _staging.py.
// - A rank sends END when all its blocks have fetched and stored everything. A rank's kernel ends when it has seen the END
//   of all ranks: its output is complete then, and its input may be overwritten.
// - START of call e + 1 is written by a rank that has seen everybody's END of call e, which is sent after all blocks have
//   seen the START of call e: one word for each is enough, and waiting for equality cannot miss it. END likewise.
//
// With COPIED, the kernel makes the copies of a staged call as well, and goes in three rounds: the blocks copy what they
// send, sum, and copy what they fetch. A rank sends START at the end of the first round and END at that of the second one,
// to itself too: no block begins a round before all blocks have ended the one before, so that one counter is enough. All
// blocks of all ranks have to be on the SMs at once.
//
// After a fault, each byte of the output is overwritten once:
// - With COPIED, each byte has one block that stores it, and no other rank stores to the output. A block that cannot finish
//   overwrites what it would have stored.
// - Else all ranks store to the output, and blocks leave before END has come. Each block has a share. A block that cannot
//   finish overwrites its own share, and claims the shares of blocks that have ended. A block notes its end before it asks
//   for a fault; a block that cannot finish knows of a fault before it looks for notes. So one of the two sees the other.
#pragma once

// How the tensors of a call are reached, as the host passes it.
constexpr u32 STAGED_IN = 1, STAGED_OUT = 2, PLACED = 4, COPIED = 8;

DEVICE u64 mailbox_of(u64 base, u32 source) { return base + MAILBOXES + source * MAILBOX_BYTES; }

DEVICE bool wait_barrier(const Call& call, u64* barrier, u32 parity) {
  Deadline deadline;
  while (!barrier_try_wait(barrier, parity))
    if (deadline.passed(call)) return false;
  return true;
}

struct Tiles {
  unsigned char* bytes;
  u64* full;    // of each stage: the tiles of all sources are there
  u64* summed;  // of each stage: their sum stands in the place of the first one

  DEVICE unsigned char* of(u32 stage, u32 source) const { return bytes + (stage * SOURCES + source) * TILE_BYTES; }
};

// The tiles of a block: number k is tile block_index() + k * block_count() of the share.
struct Walk {
  u64 share_bytes;
  u32 tile_bytes;
  u32 count;

  DEVICE u64 offset(u32 k) const { return (block_index() + static_cast<u64>(k) * block_count()) * tile_bytes; }
  DEVICE u32 bytes(u32 k) const {
    u64 left = share_bytes - offset(k);
    return left < tile_bytes ? static_cast<u32>(left) : tile_bytes;
  }
};

DEVICE Walk walk_of(const TwoExchange& a) {
  u32 tiles = static_cast<u32>((a.share_bytes + a.tile_bytes - 1) / a.tile_bytes);
  u32 mine = tiles > block_index() ? (tiles - block_index() - 1) / block_count() + 1 : 0;
  return {a.share_bytes, a.tile_bytes, mine};
}

// The thread that moves. False after the time limit.
DEVICE bool move(const TwoExchange& a, const Tiles& tiles, const Walk& walk) {
  const u64 own = a.call.peer[a.call.rank];
  const bool is_input_staged = a.is_staged & STAGED_IN, is_output_staged = a.is_staged & STAGED_OUT;
  const bool is_placed = a.is_staged & PLACED;
  u64 from[SOURCES], to[TARGETS];
#pragma unroll
  for (u32 one = 0; one < SOURCES; ++one) {
    u32 source = a.source[one];
    u64 base = is_input_staged ? a.call.peer[source] + STAGED_INPUT : is_placed ? a.input_at[source] : a.input;
    if (!is_input_staged && !is_placed && source != a.call.rank)
      base = load_relaxed(mailbox_of(own, source) + MAILBOX_INPUT);
    from[one] = base + a.input_offset[one];
  }
#pragma unroll
  for (u32 one = 0; one < TARGETS; ++one) {
    u32 target = a.target[one];
    u64 base = is_output_staged ? a.call.peer[target] + STAGED_OUTPUT : is_placed ? a.output_at[target] : a.output;
    if (!is_output_staged && !is_placed && target != a.call.rank)
      base = load_relaxed(mailbox_of(own, target) + MAILBOX_OUTPUT);
    to[one] = base == 0 ? 0 : base + a.output_offset;
  }
  // The inputs were written by ordinary stores and acquired by ordinary loads; the copies below are another proxy.
  fence_bulk();

  auto fetch = [&](u32 k) {
    u32 stage = k % STAGES;
    u32 bytes = walk.bytes(k);
    barrier_arrive_and_expect(&tiles.full[stage], SOURCES * bytes);
#pragma unroll
    for (u32 one = 0; one < SOURCES; ++one)
      bulk_load(tiles.of(stage, one), from[one] + walk.offset(k), bytes, &tiles.full[stage]);
  };
  for (u32 k = 0; k < walk.count && k < STAGES; ++k) fetch(k);
  for (u32 k = 0; k < walk.count; ++k) {
    u32 stage = k % STAGES;
    u32 parity = (k / STAGES) & 1;
    if (!wait_barrier(a.call, SOURCES == 1 ? &tiles.full[stage] : &tiles.summed[stage], parity)) return false;
#pragma unroll
    for (u32 one = 0; one < TARGETS; ++one)
      if (to[one] != 0) bulk_store(to[one] + walk.offset(k), tiles.of(stage, 0), walk.bytes(k));
    bulk_commit();
    // The stage of the tile before this one is filled again as soon as its stores have read it.
    if (k > 0 && k - 1 + STAGES < walk.count) {
      bulk_wait_read<1>();
      fetch(k - 1 + STAGES);
    }
  }
  bulk_wait();
  return true;
}

// The threads that add, `adder` of `adders`. False after the time limit.
DEVICE bool sum(const Call& call, const Tiles& tiles, const Walk& walk, u32 adder, u32 adders) {
  for (u32 k = 0; k < walk.count; ++k) {
    u32 stage = k % STAGES;
    if (!wait_barrier(call, &tiles.full[stage], (k / STAGES) & 1)) return false;
    u32 vectors = walk.bytes(k) / sizeof(Vector);
    for (u32 at = adder; at < vectors; at += adders) {
      Sum sums[4];
#pragma unroll
      for (u32 one = 0; one < SOURCES; ++one) {
        Vector more = load_tile(tiles.of(stage, one), at);
#pragma unroll
        for (u32 word = 0; word < 4; ++word) {
          if (one == 0)
            sums[word].start(more.word[word]);
          else
            sums[word].include(more.word[word]);
        }
      }
      Vector total;
#pragma unroll
      for (u32 word = 0; word < 4; ++word) total.word[word] = sums[word].value();
      store_tile(tiles.of(stage, 0), at, total);
    }
    // The bulk store of the moving thread reads what ordinary stores have written: each writer fences its own.
    fence_bulk_shared();
    barrier_arrive(&tiles.summed[stage]);
  }
  return true;
}

// By all blocks.
DEVICE void copy(const Copies& copies) {
  const u64 first = (block_index() * thread_count() + thread_index()) * sizeof(Vector);
  const u64 stride = block_count() * thread_count() * sizeof(Vector);
  for (u32 one = 0; one < WORLD; ++one)
    for (u64 at = first; at < copies.size[one]; at += stride)
      store_vector(copies.to[one] + at, load_vector(copies.source[one] + at));
}

// The place in which a block notes the epoch of the call that it has ended.
DEVICE u64 note_of(const Call& call, u32 block) { return call.peer[call.rank] + CONTROL_ENDED + block * 8; }

// Leaves no numbers in the shares of blocks that have ended. Each of them goes to the block that takes its note away.
DEVICE void spoil_for_ended(const TwoExchange& a, u64 word) {
  const Call& call = a.call;
  u32 epoch = 0;
  if (thread_index() == 0) {
    fence_device();
    // No block of this call has ended unless one has taken the word, which stays with the call.
    const u64 held = load_relaxed(word);
    if (running_of(held) == call.number) epoch = next_epoch(epoch_of(held));
  }
  for (u32 hop = 0; hop < block_count(); ++hop) {
    const u32 block = (block_index() + hop) % block_count();
    const u64 note = note_of(call, block);
    const bool is_claimed = epoch != 0 && load_relaxed(note) == epoch && swap_own_word_if(note, epoch, 0) == epoch;
    if (all_of_block(thread_index() != 0 || is_claimed))
      spoil(call, a.output, a.output_bytes, block, block_count());
  }
}

// Leaves no numbers where this block would have copied to, and where it would have stored the sums for its own rank.
DEVICE void spoil_copied(const TwoExchange& a) {
  const Vector nothing_right = no_numbers(a.call);
  const u64 first = (block_index() * thread_count() + thread_index()) * sizeof(Vector);
  const u64 stride = block_count() * thread_count() * sizeof(Vector);
  for (u32 one = 0; one < WORLD; ++one)
    for (u64 at = first; at < a.fetches.size[one]; at += stride)
      overwrite_vector(a.fetches.to[one] + at, nothing_right);
  const u64 sums = a.output_at[a.call.rank];
  const Walk walk = walk_of(a);
  for (u32 k = 0; sums != 0 && k < walk.count; ++k)
    for (u32 at = thread_index() * sizeof(Vector); at < walk.bytes(k); at += thread_count() * sizeof(Vector))
      overwrite_vector(sums + walk.offset(k) + at, nothing_right);
}

// Leaves no numbers in the part of the output that is for a block which cannot finish. has_ended: it has noted its end.
DEVICE void give_up(const TwoExchange& a, u64 word, bool has_ended) {
  if (a.is_staged & COPIED) return spoil_copied(a);
  if (!has_ended) spoil(a.call, a.output, a.output_bytes, block_index(), block_count());
  if (a.output_bytes != 0) spoil_for_ended(a, word);
}

// Returns whether the block is done. has_ended: whether it has noted its end.
DEVICE bool exchange_shares(const TwoExchange& a, u64 word, bool& has_ended) {
  const Call& call = a.call;
  const u64 own = call.peer[call.rank];
  const u32 epoch = begin_call(call, word);
  if (epoch == 0) return false;
  const u32 thread = thread_index();

  Tiles tiles;
  tiles.full = reinterpret_cast<u64*>(dynamic_shared());
  tiles.summed = tiles.full + STAGES;
  tiles.bytes = dynamic_shared() + TILES_OFFSET;
  if (thread == 0) {
    for (u32 stage = 0; stage < STAGES; ++stage) {
      barrier_init(&tiles.full[stage], 1);
      barrier_init(&tiles.summed[stage], TWO_EXCHANGE_THREADS - MOVERS);
    }
    barrier_init_done();
  }

  const bool is_copied = a.is_staged & COPIED, has_note = a.output_bytes != 0;
  bool sends_start = block_index() == 0;
  if (is_copied) {
    copy(a.sends);
    // What all threads have stored becomes part of what the last block releases, as below.
    sync_block();
    sends_start = true;
    if (thread == 0) {
      fence_device();
      sends_start = is_last_block(word, 1);
      fence_device();
    }
    sends_start = all_of_block(sends_start);
  }

  const bool has_peer = thread < WORLD && (is_copied || thread != call.rank);
  bool peer_is_here = true;
  if (has_peer) {
    const u64 theirs = mailbox_of(call.peer[thread], call.rank);
    if (sends_start) {
      store_relaxed(theirs + MAILBOX_INPUT, a.input_at[thread]);
      store_relaxed(theirs + MAILBOX_OUTPUT, a.output_at[thread]);
      // Released at system scope: the addresses above, and the input, which was complete when the kernel began.
      store_release(theirs + MAILBOX_START, packet(call.signature, epoch));
    }
    peer_is_here = wait_flag(call, mailbox_of(own, thread) + MAILBOX_START, thread, epoch);
    // The block that sends START leaves without it if it begins behind this fault. Where ranks were called with different
    // things, all of them have to learn it, those with the same as this one too: by a START that fits to nothing, because
    // there are no addresses with it.
    if (!peer_is_here && !sends_start && load_own(own + CONTROL_FAULT) == FAULT_MISMATCH)
      store_relaxed(theirs + MAILBOX_START, packet(~call.signature, epoch));
  }
  // The barrier of the block hands what these threads have acquired to the one that moves.
  if (!all_of_block(peer_is_here)) return false;

  const Walk walk = walk_of(a);
  bool done = true;
  bool is_last = true;  // of the blocks; what the other threads say does not count
  if (thread >= MOVERS) {
    done = SOURCES == 1 || sum(call, tiles, walk, thread - MOVERS, TWO_EXCHANGE_THREADS - MOVERS);
  } else if (thread == 0) {
    done = move(a, tiles, walk);
    if (done) {
      // The copies of this block are complete. They become part of what the last block releases: copies before ordinary
      // accesses (first fence), and this thread's before the arrival that the last block sees (second fence), which
      // orders what follows behind the arrivals before it (third fence). The blocks are of one device; END, which is
      // released at system scope, hands on to other devices what was ordered before it.
      fence_bulk();
      if (has_note) store_relaxed(note_of(call, block_index()), epoch);
      fence_device();
      is_last = is_last_block(word, is_copied ? 2 : 1);
      fence_device();
    }
  }
  if (!done) report(call, FAULT_TIMEOUT, call.rank, epoch);
  if (!all_of_block(done)) return false;
  has_ended = has_note;
  // The barrier of the block hands on what the thread that moves has seen.
  is_last = all_of_block(is_last);
  if (!is_last && !is_copied) {
    // Asks by an atomic operation: a block that knows of a later fault sees the note.
    if (thread == 0 && has_note) done = swap_own_if(own + CONTROL_FAULT, 0, 0) == 0;
    return all_of_block(done);
  }
  if (has_peer) {
    if (is_last)
      store_release(mailbox_of(call.peer[thread], call.rank) + MAILBOX_END, packet(call.signature, epoch));
    done = wait_flag(call, mailbox_of(own, thread) + MAILBOX_END, thread, epoch);
  }
  if (!all_of_block(done)) return false;
  if (is_copied) {
    copy(a.fetches);
    // Nothing of this call runs any more when the next one may.
    sync_block();
  }
  if (thread == 0 && (!is_copied || is_last_block(word, 3))) end_call(call, word, epoch);
  return true;
}

KERNEL(two_exchange, TWO_EXCHANGE_THREADS)(const __grid_constant__ TwoExchange a) {
  const u64 word = a.call.peer[a.call.rank] + CONTROL_FLAG_WORD;
  bool has_ended = false;
  if (!exchange_shares(a, word, has_ended)) give_up(a, word, has_ended);
}
