from __future__ import annotations

import pytest
from scheduler import Scheduler

from cuda_gctx import CUDAError, Device, Stream, tune
from cuda_software_driver import Session

MS = 1_000_000


def long_job(stream: Stream) -> None:
    tune.spin(stream, blocks=1000, spin_ns=MS)


def short_job(stream: Stream) -> None:
    tune.spin(stream, blocks=8, spin_ns=MS // 20)


@pytest.mark.gpu_sim("h200", driver="13.0")
def test_urgent_jobs_do_not_wait_for_bulk_jobs(gpu_sim: Session) -> None:
    with Scheduler(Device()) as scheduler:
        scheduler.submit("bulk", long_job)
        scheduler.submit("urgent", short_job)
        gpu_sim.advance(MS // 10)  # virtual time: the test does not depend on the machine that runs it
        assert scheduler.is_idle("urgent")
        assert not scheduler.is_idle("bulk")


@pytest.mark.gpu_sim("b200", driver="13.1")
def test_the_share_follows_the_card() -> None:
    device = Device()
    with Scheduler(device, share=0.25) as scheduler:
        assert scheduler.sm_count("urgent") <= device.sm_count // 4
        assert scheduler.sm_count("urgent") + scheduler.sm_count("bulk") == device.sm_count


@pytest.mark.gpu_sim("h200")
def test_without_memory_for_partitions_jobs_share_the_device(gpu_sim: Session) -> None:
    gpu_sim.fail("cuGreenCtxCreate", nth=2)  # the second partition cannot be made; the first one must not leak
    with Scheduler(Device()) as scheduler:
        assert not scheduler.is_partitioned
        assert scheduler.sm_count("urgent") == 132
        scheduler.submit("urgent", short_job)


@pytest.mark.gpu_sim("h200")
def test_other_errors_reach_the_caller(gpu_sim: Session) -> None:
    gpu_sim.fail("cuGreenCtxCreate", code="CUDA_ERROR_ECC_UNCORRECTABLE", nth=1)
    with pytest.raises(CUDAError, match="ECC"):
        Scheduler(Device())
