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
//
// The transport sends READY and the pieces: kernels of this file, or a library. The waits are here, with a time limit.
#pragma once

struct Exchange {
  Call call;
  u64 region[NODES];  // of the equal local ranks, by node, as this rank has mapped them; a library's: its own alone
  u64 piece_bytes;    // of this call; a multiple of 16
  u32 node;
  u32 piece[NODES];   // which of its pieces this rank sends to each node
};

DEVICE u32 world_rank_of(const Exchange& a, u32 node) { return node * WORLD + a.call.rank; }

DEVICE u64 signal_of(u64 region, u32 node) { return region + node * SIGNAL_BYTES; }
DEVICE u64 outgoing_of(u64 region, u32 piece) { return region + FIRST_OUTGOING + piece * PIECE_STRIDE; }
DEVICE u64 incoming_of(u64 region, u32 node) { return region + FIRST_INCOMING + node * PIECE_STRIDE; }

// The number of this exchange. The last kernel of an exchange counts.
DEVICE u64 number_of(const Call& call) { return load_relaxed(call.peer[call.rank] + CONTROL_EXCHANGES) + 1; }

DEVICE bool wait_signal(const Exchange& a, u64 address, u32 node, u64 number) {
  Deadline deadline;
  while (load_acquire(address) < number)
    if (deadline.passed(a.call)) {
      report_world(a.call, FAULT_TIMEOUT, world_rank_of(a, node), static_cast<u32>(number));
      return false;
    }
  return true;
}

// READY of this exchange, to every other node. Not where a library sends it.
KERNEL(say_ready, NODE_THREADS)(const __grid_constant__ Exchange a) {
  if (has_fault(a.call)) return;
  const u32 node = thread_index();
  if (node < NODES && node != a.node)
    store_release(signal_of(a.region[node], a.node) + SIGNAL_READY, number_of(a.call));
}

// The headers of the pieces; then READY of every other node.
KERNEL(wait_ready, NODE_THREADS)(const __grid_constant__ Exchange a) {
  if (has_fault(a.call)) return;
  const u64 number = number_of(a.call);
  const u32 thread = thread_index();
  if (thread < PIECES)
    store_relaxed(outgoing_of(a.region[a.node], thread), packet(a.call.signature, static_cast<u32>(number)));
  if (thread < NODES && thread != a.node)
    wait_signal(a, signal_of(a.region[a.node], thread) + SIGNAL_READY, thread, number);
}

// The pieces to every other node, and then DATA. Not where a library sends them.
KERNEL(put_pieces, NODE_THREADS)(const __grid_constant__ Exchange a) {
  if (has_fault(a.call)) return;
  const u64 own = a.call.peer[a.call.rank];
  const u64 vectors = (HEADER_BYTES + a.piece_bytes) / sizeof(Vector);
  const u64 first = static_cast<u64>(block_index()) * thread_count() + thread_index();
  const u64 stride = static_cast<u64>(block_count()) * thread_count();
  for (u32 hop = 1; hop < NODES; ++hop) {
    // Each node begins with its successor, so that not all of them write to the same one at once.
    const u32 node = (a.node + hop) % NODES;
    const u64 from = outgoing_of(a.region[a.node], a.piece[node]), to = incoming_of(a.region[node], a.node);
    for (u64 at = first; at < vectors; at += stride)
      store_vector(to + at * sizeof(Vector), load_vector(from + at * sizeof(Vector)));
  }
  // Every thread of the block has stored; the fence makes that visible before the arrival, which the last block sees.
  sync_block();
  bool is_last = false;
  if (thread_index() == 0) {
    fence_system();
    is_last = add_own(own + CONTROL_PUT_ARRIVED, 1) == block_count() - 1;
    fence_system();
    if (is_last) {
      store_own(own + CONTROL_PUT_ARRIVED, 0);
      const u64 number = number_of(a.call);
      for (u32 node = 0; node < NODES; ++node)
        if (node != a.node) store_release(signal_of(a.region[node], a.node) + SIGNAL_DATA, number);
    }
  }
}

// DATA of every other node; then this exchange counts.
KERNEL(wait_data, NODE_THREADS)(const __grid_constant__ Exchange a) {
  if (has_fault(a.call)) return;
  const u64 number = number_of(a.call);
  const u32 node = thread_index();
  bool is_there = true;
  if (node < NODES && node != a.node) {
    const u64 region = a.region[a.node];
    is_there = wait_signal(a, signal_of(region, node) + SIGNAL_DATA, node, number);
    if (is_there && load_relaxed(incoming_of(region, node)) != packet(a.call.signature, static_cast<u32>(number))) {
      report_world(a.call, FAULT_MISMATCH, world_rank_of(a, node), 0);
      is_there = false;
    }
  }
  if (all_of_block(is_there) && thread_index() == 0)
    store_relaxed(a.call.peer[a.call.rank] + CONTROL_EXCHANGES, number);
}
