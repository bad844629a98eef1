// The first and the last kernel of a plan with several steps: copies, calls of a library, or several kernels. The plan holds
// its control words from the one to the other. Another plan that needs one of them waits in its first kernel, so that its
// copies begin behind the last step of this plan, whatever stream they are on.
#pragma once

KERNEL(begin_plan, 32)(const __grid_constant__ Plan a) {
  if (thread_index() != 0) return;
  // All plans take their words in one order. A plan that cannot have a word has a fault, and its last kernel gives back the
  // words that it has.
  for (u32 line = 1; a.words >> line != 0; ++line)
    if ((a.words >> line & 1) != 0 && !hold(a.call, control_word(a.call, line))) return;
}

KERNEL(end_plan, SPOIL_THREADS)(const __grid_constant__ Plan a) {
  if (has_fault(a.call)) {
    spoil(a.call, a.output, a.bytes, block_index(), block_count());
    spoil(a.call, a.second_output, a.second_bytes, block_index(), block_count());
  }
  if (block_index() != 0 || thread_index() != 0) return;
  for (u32 line = 1; a.words >> line != 0; ++line)
    if ((a.words >> line & 1) != 0) give_back(a.call, control_word(a.call, line));
}
