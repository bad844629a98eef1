// Copies before and behind the kernel of a small message that is staged. Copy engines would be as fast, but a launch of
// theirs takes the host longer than the copy takes, and each copy is one. Between this kernel and the next one, the
// stream orders what both do, as it does with copies.
#pragma once

// After a fault, it leaves no numbers in the output instead, if it has one.
KERNEL(copy_or_spoil, SPOIL_THREADS)(const __grid_constant__ Copies a) {
  if (has_fault(a.call)) return spoil(a.call, a.output, a.bytes, block_index(), block_count());
  const u64 first = (block_index() * thread_count() + thread_index()) * sizeof(Vector);
  const u64 stride = block_count() * thread_count() * sizeof(Vector);
  for (u32 one = 0; one < a.count; ++one)
    for (u64 at = first; at < a.size[one]; at += stride) store_vector(a.to[one] + at, load_vector(a.source[one] + at));
}
