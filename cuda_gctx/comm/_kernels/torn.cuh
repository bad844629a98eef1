// Whether whole packets arrive whole: all ranks store packets to each other and load those of the others, at the same
// time and without waiting. Runs when the ranks meet, before any call. The host reads whether a torn one was seen.
#pragma once

// Four words of which no part of one such packet fits to a part of another; none of them is zero.
DEVICE Vector marked(u32 number) { return {number, ~number, number * 0x9e3779b1u, number ^ 0x5bd1e995u}; }

DEVICE bool is_torn(const Vector& packet) {
  const Vector whole = packet.word[0] != 0 ? marked(packet.word[0]) : Vector{};
  return whole.word[1] != packet.word[1] || whole.word[2] != packet.word[2] || whole.word[3] != packet.word[3];
}

KERNEL(look_for_torn_packets, TORN_THREADS)(const __grid_constant__ Torn a) {
  const Call& call = a.call;
  const u32 place = block_index() * thread_count() + thread_index();
  bool has_seen_one = false;
  for (u32 number = 1; number <= a.packets; ++number) {
#pragma unroll
    for (u32 hop = 1; hop < WORLD; ++hop) store_packet(slot_at(call, successor(call, hop), 0, place), marked(number));
#pragma unroll
    for (u32 other = 0; other < WORLD - 1; ++other)
      has_seen_one |= is_torn(load_packet(slot_of(call.peer[call.rank], 0, other, place)));
  }
  // As if nothing had been here.
#pragma unroll
  for (u32 hop = 1; hop < WORLD; ++hop) store_packet(slot_at(call, successor(call, hop), 0, place), {});
  if (has_seen_one) store_relaxed(call.fault + TORN_AT, 1);
}
