// Between nodes: equal local ranks exchange the pieces that each has summed for the others.
//
// Two counters for each pair of ranks, which count exchanges and never go back, so that a graph can be replayed:
// - READY: the writer has read all earlier pieces, so its incoming pieces may be overwritten.
// - DATA: the piece of the writer has arrived.
//
// Why one incoming piece for each node is enough. A rank sends its piece of exchange e when it has seen READY of e from
// the receiver. The receiver sends it when its kernels of call e - 1, which read the previous piece, have ended: calls
// are in stream order. DATA of e comes after the bytes of the piece.
//
// A piece has a header: what was called, and in which exchange. A rank that has a fault sends no new header, so that the
// receiver finds the old header, whatever arrives with it.
#pragma once

DEVICE u32 world_rank_of(const Exchange& a, u32 node) { return node * WORLD + a.call.rank; }

DEVICE u64 signal_of(u64 region, u32 node) { return region + node * SIGNAL_BYTES; }
DEVICE u64 outgoing_of(u64 region, u32 piece) { return region + FIRST_OUTGOING + piece * PIECE_STRIDE; }
DEVICE u64 incoming_of(u64 region, u32 node) { return region + FIRST_INCOMING + node * PIECE_STRIDE; }

// The number of this exchange. Its last block counts.
DEVICE u64 number_of(const Call& call) { return load_relaxed(call.peer[call.rank] + CONTROL_EXCHANGES) + 1; }

// step: by how much an exchange counts up.
DEVICE bool wait_signal(const Exchange& a, u64 address, u32 node, u64 number, u64 step) {
  Deadline deadline;
  while (load_acquire(address) < number * step)
    if (deadline.passed(a.call)) {
      report_world(a.call, FAULT_TIMEOUT, world_rank_of(a, node), static_cast<u32>(number));
      return false;
    }
  return true;
}

// How a block counts up at another node, and sends its part of a piece there. NVSHMEM takes a place of this rank's own
// region for the same place in another one's.
#if THROUGH_NVSHMEM

LINKED void nvshmem_count(u64 counter, u64 count, u32 rank);
LINKED void nvshmem_send(u64 to, u64 from, u64 bytes, u64 counter, u64 count, u32 rank);

// By which the blocks of an exchange, however many they are, count DATA up.
#define DATA_OF_EXCHANGE 65536

DEVICE void count_ready(const Exchange& a, u32 node, u64) {
  nvshmem_count(signal_of(a.region[node], a.node) + SIGNAL_READY, 1, world_rank_of(a, node));
}

DEVICE void send_part(const Exchange& a, u32 node, u64 begin, u64 size) {
  const u64 from = outgoing_of(a.region[a.node], a.piece[node]), to = incoming_of(a.region[node], a.node);
  const u64 count = block_index() == 0 ? DATA_OF_EXCHANGE - (block_count() - 1) : 1;
  nvshmem_send(to + begin, from + begin, size, signal_of(a.region[node], a.node) + SIGNAL_DATA, count,
               world_rank_of(a, node));
}

DEVICE void parts_are_sent() {}
DEVICE void count_data(const Exchange&, u32, u64) {}

#else

#define DATA_OF_EXCHANGE 1

DEVICE void count_ready(const Exchange& a, u32 node, u64 number) {
  store_release(signal_of(a.region[node], a.node) + SIGNAL_READY, number);
}

DEVICE void send_part(const Exchange& a, u32 node, u64 begin, u64 size) {
  const u64 from = outgoing_of(a.region[a.node], a.piece[node]), to = incoming_of(a.region[node], a.node);
  for (u64 at = begin + thread_index() * sizeof(Vector); at < begin + size; at += thread_count() * sizeof(Vector))
    store_vector(to + at, load_vector(from + at));
}

// Makes what every thread of the block has stored visible before the arrival, which the last block sees.
DEVICE void parts_are_sent() {
  sync_block();
  fence_system();
}

DEVICE void count_data(const Exchange& a, u32 node, u64 number) {
  store_release(signal_of(a.region[node], a.node) + SIGNAL_DATA, number);
}

#endif

// Whether DATA of a node is there, with the header of this exchange.
DEVICE bool is_received(const Exchange& a, u32 node, u64 number) {
  const u64 region = a.region[a.node];
  if (!wait_signal(a, signal_of(region, node) + SIGNAL_DATA, node, number, DATA_OF_EXCHANGE)) return false;
  if (load_relaxed(incoming_of(region, node)) == packet(a.call.signature, static_cast<u32>(number))) return true;
  report_world(a.call, FAULT_MISMATCH, world_rank_of(a, node), 0);
  return false;
}

KERNEL(exchange_pieces, NODE_THREADS)(const __grid_constant__ Exchange a) {
  const u64 own = a.call.peer[a.call.rank], word = own + CONTROL_PUT_WORD;
  const u32 epoch = begin_call(a.call, word);
  if (epoch == 0) return;
  const u64 number = number_of(a.call);
  const u32 thread = thread_index();
  const bool has_node = thread < NODES && thread != a.node;
  // The first block has the beginning of each piece, and so its header.
  if (block_index() == 0) {
    if (has_node) count_ready(a, thread, number);
    if (thread < PIECES)
      store_relaxed(outgoing_of(a.region[a.node], thread), packet(a.call.signature, static_cast<u32>(number)));
  }
  bool is_ready = true;
  if (has_node) is_ready = wait_signal(a, signal_of(a.region[a.node], thread) + SIGNAL_READY, thread, number, 1);
  if (!all_of_block(is_ready)) return;

  const u64 vectors = (HEADER_BYTES + a.piece_bytes) / sizeof(Vector);
  const u64 begin = vectors * block_index() / block_count() * sizeof(Vector);
  const u64 end = vectors * (block_index() + 1) / block_count() * sizeof(Vector);
  for (u32 hop = 1; hop < NODES; ++hop)
    // Each node begins with its successor, so that not all of them write to the same one at once.
    send_part(a, (a.node + hop) % NODES, begin, end - begin);
  parts_are_sent();

  // The last block waits, so that none which waits takes the place of one that has not yet sent.
  bool is_last = false;
  if (thread == 0) {
    is_last = is_last_block(word);
    // Orders what follows behind the arrivals before it. The barrier of the block hands that on to the threads which
    // release DATA.
    fence_device();
  }
  if (!all_of_block(thread != 0 || is_last)) return;
  bool is_there = true;
  if (has_node) {
    count_data(a, thread, number);
    is_there = is_received(a, thread, number);
  }
  if (all_of_block(is_there) && thread == 0) {
    store_relaxed(own + CONTROL_EXCHANGES, number);
    end_call(a.call, word, epoch);
  }
}
