// Behind a call whose output does not come from one kernel alone: from copies, or from the last of several kernels.
#pragma once

KERNEL(spoil_after_fault, SPOIL_THREADS)(const __grid_constant__ Spoil a) {
  if (has_fault(a.call))
    spoil(a.call, a.output, a.bytes, block_index(), block_count(), a.kept_begin, a.kept_end);
}
