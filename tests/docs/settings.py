"""The limits and settings that sentences of the pages name, as the code has them.

A sentence with "{}" has there the value of the expression next to it, of a module of the package. The others name what
is no value of the code: codes of errors, sizes that an example is about, and how something was measured.
"""

from __future__ import annotations

import importlib

Setting = str | tuple[str, str]

SETTINGS: dict[str, list[Setting]] = {
    "../README": ["With 256 MiB, both together were", "(2 and 4 GPUs)"],
    "tutorial": ["keeps at least 70% of its rate"],
    "which-should-i-use": ["groups of 2 SMs and more"],
    "concepts": [
        "*alignment*, which is 8 SMs on an H200: groups of a multiple of 8",
        "SMs of one GPC; 8 on an H200",
        "such as 8 of decode and 1 of prefill",
        "clusters of 2 fit there",
    ],
    "guarantee": ["at 99 % use of the SMs", "| 99 % use of the SMs and no progress"],
    "how-to": ["keeps 75 % of the rate that it has alone", "an all-reduce of 256 MiB in 16 SMs and a GEMM in 116 were"],
    "frameworks": [
        "the smallest group on 13.0, 120 SMs on 13.1, 132 on 13.4 (of 132) | 128 on all",
        "alignment of 2 may not fit NCCL's usual clusters of 4",
    ],
    "drop-ins": [
        "such as 64, 40 and 24 on a device with 15 units of 8 instead of 16",
        "CUDA error code=915(",
        "For 74 and 34 SMs of an H200, sgl-kernel's second stream has 32, and this one has 40",
        "for 120 and 20 SMs of an H200, sgl-kernel's second stream has 12",
        "from a pool of 32",
        "is rounded up; 0, negative counts",
        "(8 SMs on an H200, 4 on an A100, where 5 become 8)",
        "(100 after 32 of 132)",
    ],
    "graphs": [
        "graph executable is 1.1 times the time of the unmoved",
        "with 100 kernels and",
        "with 1000.",
        "from one capture in 16, 48 and 132 SMs",
    ],
    "communication": [
        "| tp > 1, dp = 1 |",
        "| tp = 1, dp > 1 | `ALLGATHER`",
        "| tp = 1, dp > 1 | `REDUCESCATTER`",
        "| tp = 1, dp > 1 | `ALLTOALL`",
        ("`ONE_EXCHANGE` up to {} MiB, which its packets", "comm._protocol: PACKET_MESSAGE_BYTES >> 20"),
        ("of more than {} MiB divided by", "comm._protocol: PACKET_MESSAGE_BYTES >> 20"),
        ("receives at most {} MiB from all others together", "comm._modes: SMALL_STAGED_BYTES >> 20"),
        ("together, or {} KiB with [mapped", "comm._modes: SMALL_REACHED_BYTES >> 10"),
        "becomes the largest number, 448",
        ("at most {} ranks that meet in a kernel", "comm._protocol: MOST_RANKS"),
        ("multiples of {} bytes", "comm._protocol: ALIGNMENT"),
        "128 bits, of which 96 are data | accesses of 128 bits",
        "two of 64 bits, each with 32 bits of data",
        ("`max_message_bytes` (default: {} MiB)", "comm._building: STAGED_BYTES >> 20"),
        ("output. Up to {} MiB, the kernel that sums", "comm._modes: COPIED_BY_KERNEL_BYTES >> 20"),
        "each power of two from 1 KiB to 256 MiB",
        ("but at least for {:.0f} s: in the constructor", "comm._arguments: HOST_S"),
        ("meet within {:.0f} s (or `timeout_s`", "comm._building: MEETING_S"),
        "it is faster at 64 MiB in 16 SMs",
        "a broadcast of 256 MiB takes",
        "an all-reduce of 256 MiB was",
    ],
    "processes": ["of 16 with a percentage of 50", "chunks of SMs, 8 on a Hopper GPU"],
    "native": [
        "an index, -1 for the last partition",
        "| `min_sm_count`, 2 by default: the unit of the split by count that sizes are composed of; 2 needs",
        "gives units of 2 |",
        "both ran on 16 SMs of 16",
    ],
    "software-driver": [
        "when it makes no calls for 100 ms",
        "those below 100 are 57 functions",
        "and 200 KiB of shared",
        "takes 5 us per block",
        "an 8192 x 8192 x 8192 bf16 GEMM",
        "makes no calls for 20 ms",
        "time stands still for at most 100 ms",
    ],
    "troubleshooting": [
        "GPU utilisation at 100 %",
        "132 blocks on an H200",
        "shows 99 % and no step ends",
        "## Error 709:",
        "## Error 900 or 901:",
        "## Error 914 or 915:",
        "914 means that a resource",
        "a context; 915 that a resource",
        "## Error 400:",
        "on it returns 400",
        "alignment: 10 become 16 on an H200",
        ("the default is {} queues", "partitions.causes: DEFAULT_CONNECTIONS"),
        "`destroyed` stays 0",
    ],
    "partitions": [
        "so that 0.5 and 0.5 fit",
        "1.0 is refused",
        "(256 x 4096 bf16 sigmoid) while 8192 x 8192 x 8192 bf16 GEMMs",
        "and 10,000 requests per second are more",
    ],
    "guide": [
        "An H200 has 15 units of 8 SMs inside its GPCs",
        "(Eight groups of 16 do not fit into the 15 units of 8",
        "groups 0, 3 and 7 ran on exactly those 24 SMs",
    ],
    "tuning": [
        "the same, and 200 calls arrive per second",
        "has to achieve 80% of its rate alone",
        "(above 0, at most 1)",
        "measured in 7 to 15 rounds",
        "too short for 7 rounds of all sizes",
        "is faster by 5% (`hysteresis=`)",
        "under a load 5% larger",
        "never comes within 15% of the best",
        "of each kind that is within 15% of the best",
        "needs some 700 calls of each plan",
        "looks together are 1% for a pair of plans; with fewer than 15 rounds the certainty is 97.5%",
        "After 15 rounds all of that variance counts",
        "From 40 ms on, a batch is one step",
        "typical plans count as equal: 1%,",
        "has room for 1024 of them",
    ],
    "command-line": [
        "lets 200 calls arrive per second",
        "and exits with status 130",
        "| 130 | interrupted by Ctrl-C",
        "or with 127 if the program",
    ],
    "performance": [
        "at most 1.3 times the raw driver call plus 50 ns",
        "| under 100 ns |",
        "| under 50 ms, without",
        "| under 1 us, device memory",
        "| under 5 us of the host",
        "about 0.2 ms long",
        "closes 50 contexts",
        "of a bare interpreter, 20 of each",
        "The exit status is 0 if it measured, 1 if the driver lacks",
        "and 3 without a driver",
    ],
}


def settings_of(page: str) -> list[str]:
    """The sentences of a page, with the values that the code has now."""
    return [setting if isinstance(setting, str) else filled(*setting) for setting in SETTINGS.get(page, [])]


def filled(sentence: str, source: str) -> str:
    module, _, expression = source.partition(": ")
    names = vars(importlib.import_module(f"cuda_gctx.{module}"))
    return sentence.format(eval(expression, dict(names)))
