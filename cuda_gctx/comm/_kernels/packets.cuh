// What a packet carries, and where packets lie. Tensors are read and written in vectors of four words.
//
// Whole packets: three words of data and an epoch, in one access of 128 bits. Four packets, of four neighbouring threads,
// carry three vectors: the first three packets the first three words of a vector each, the fourth one the last words of
// all three. They need accesses of 128 bits that nothing divides, which the memory model of PTX does not promise: host
// and kernels agree on them where such accesses have been seen, and look for torn packets before the first call.
//
// Halves: two words of data, each with an epoch behind it, in accesses of 64 bits, which the model does not divide. Two
// packets, of two neighbouring threads, carry a vector.
#pragma once

struct Packets {
  u32 count;   // of a block of the output
  u32 first;   // of this thread
  u32 stride;  // to the next one of this thread
  u32 vectors;

#if DATA_WORDS == 3

  static DEVICE u32 count_of(u32 vectors) { return (vectors + 2) / 3 * 4; }
  // The vector that the thread reads for a packet. For the fourth, that of the first: it is there if any of them is.
  static DEVICE u32 vector_of(u32 packet) { return packet / 4 * 3 + (packet % 4 < 3 ? packet % 4 : 0); }
  static DEVICE bool stores_vector(u32 packet) { return packet % 4 < 3; }

#else

  static DEVICE u32 count_of(u32 vectors) { return 2 * vectors; }
  static DEVICE u32 vector_of(u32 packet) { return packet / 2; }
  static DEVICE bool stores_vector(u32 packet) { return packet % 2 == 0; }

#endif

  DEVICE bool has(u32 packet) const { return vector_of(packet) < vectors; }
};

#if DATA_WORDS == 3

// The place of a word of the data in a packet.
DEVICE constexpr u32 place_of(u32 word) { return word; }

// From the vectors that the threads have read to the data of their packets, and back.
DEVICE Vector packed(Vector vector) {
  Vector last = last_words(vector.word[3]);
  return thread_index() % 4 == 3 ? last : vector;
}
DEVICE Vector unpacked(Vector packet) {
  packet.word[3] = word_of_last(packet);
  return packet;
}

DEVICE Vector stamped(Vector packet, u32 epoch) {
  packet.word[3] = epoch;
  return packet;
}
DEVICE bool is_of(const Vector& packet, u32 epoch) { return packet.word[3] == epoch; }

DEVICE void send_packet(u64 slot, const Vector& packet) { store_packet(slot, packet); }
DEVICE Vector receive_packet(u64 slot) { return load_packet(slot); }

#else

DEVICE constexpr u32 place_of(u32 word) { return 2 * word; }

DEVICE Vector packed(Vector vector) {
  const bool is_second = thread_index() % 2;
  return {is_second ? vector.word[2] : vector.word[0], 0, is_second ? vector.word[3] : vector.word[1], 0};
}
DEVICE Vector unpacked(Vector packet) {
  return {packet.word[0], packet.word[2], word_of_next(packet.word[0]), word_of_next(packet.word[2])};
}

DEVICE Vector stamped(Vector packet, u32 epoch) {
  packet.word[1] = packet.word[3] = epoch;
  return packet;
}
DEVICE bool is_of(const Vector& packet, u32 epoch) { return packet.word[1] == epoch && packet.word[3] == epoch; }

DEVICE void send_packet(u64 slot, const Vector& packet) { store_halves(slot, packet); }
DEVICE Vector receive_packet(u64 slot) { return load_halves(slot); }

#endif

// other: the number of the source among the ranks but the one that receives.
DEVICE u64 slot_of(u64 base, u32 epoch, u32 other, u32 packet) {
  return base + SLOTS + (epoch & 1) * ((WORLD - 1) * SLOT_BYTES) + other * SLOT_BYTES + static_cast<u64>(packet) * 16;
}

// Where a rank stores packets for another one.
DEVICE u64 slot_at(const Call& call, u32 target, u32 epoch, u32 packet) {
  return slot_of(call.peer[target], epoch, call.rank - (call.rank > target), packet);
}

// Each rank begins with its successor, so that not all of them write to the same one at once.
DEVICE u32 successor(const Call& call, u32 hop) {
  u32 rank = call.rank + hop;
  return rank < WORLD ? rank : rank - WORLD;
}

// The ranks but this one, in order.
DEVICE u32 rank_of(const Call& call, u32 other) { return other + (other >= call.rank); }
