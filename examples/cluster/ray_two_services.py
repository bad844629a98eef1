"""Two services of actors that share each card of a Ray cluster by partitions.

    python examples/cluster/ray_two_services.py --local       # two nodes on this machine, on the software driver
    python examples/cluster/ray_two_services.py               # the cluster of RAY_ADDRESS

Ray places: each node offers its SMs as a custom resource (``ray start --resources='{"sms": 132}'``), and an actor takes
as many as its partition has. The runtime environment carries the layout, and all actors agree on it before they work.
Without MPS, the processes of the two services take turns on a card.
"""

from __future__ import annotations

import os
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cuda_gctx import Device

LAYOUT = "control=16,rest"
SMS, SERVICES = 132, {"control": 16, "rest": 116}


@ray.remote(num_cpus=0)
class Service:
    """One service on one node."""

    def __init__(self, name: str) -> None:
        self.name = name

    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def join(self, rank: int, size: int, meeting: str) -> None:
        """Open the layout, and agree with all other actors on it."""
        import torch.distributed as dist

        from cuda_gctx.interop.nccl import agree

        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        self.parts = Device().partition()
        agree(self.parts)

    def work(self) -> tuple[str, int, str]:
        from cuda_gctx.tune import spin

        part = self.parts[self.name]
        spin(part.stream, 2 * part.sm_count, 1_000_000)
        part.sync()
        return self.name, part.sm_count, ray.get_runtime_context().get_node_id()


def main() -> None:
    if "--local" in sys.argv:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("CUDA_GCTX_DRIVER", "sim:h200@13.0")
        cluster = Cluster()
        for _ in range(2):
            cluster.add_node(num_cpus=1, resources={"sms": SMS}, object_store_memory=100 << 20)
        ray.init(address=cluster.address, log_to_driver=False)
    else:
        ray.init(address="auto")
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("sms")]
    group = placement_group([{"sms": SMS}] * len(nodes), strategy="STRICT_SPREAD")
    ray.get(group.ready())
    environment = {"CUDA_GCTX_LAYOUT": LAYOUT}
    if "CUDA_GCTX_DRIVER" in os.environ:
        environment["CUDA_GCTX_DRIVER"] = os.environ["CUDA_GCTX_DRIVER"]
    actors = [
        Service.options(
            resources={"sms": sms},
            runtime_env={"env_vars": environment},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote(name)
        for index in range(len(nodes))
        for name, sms in SERVICES.items()
    ]
    meeting = f"tcp://{ray.get(actors[0].address.remote())}:29511"
    ray.get([actor.join.remote(rank, len(actors), meeting) for rank, actor in enumerate(actors)])
    answers = ray.get([actor.work.remote() for actor in actors])
    for name, sms, _ in answers:
        print(f"{name}: {sms} SMs")
    print(f"{len(answers)} actors on {len({node for *_, node in answers})} nodes agree")
    ray.shutdown()


if __name__ == "__main__":
    main()
