"""p99 latencies of a short kernel next to GEMMs, measured by benchmarks/arrivals.py."""

WHERE = "NVIDIA H200, driver 580.159.04, 2026-11-24"
REQUESTS_PER_SECOND = "1000"
ALONE = "66.5 us"
ISOLATED = "106 us"
PRIORITY = "1615 us"
