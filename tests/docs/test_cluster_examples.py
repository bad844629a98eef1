"""The examples of many processes do what their page shows, and the Kubernetes file carries a layout that fits.

Those that need torch or Ray take long, and have a CI job of their own: ``.ci/cluster``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import REPOSITORY

pytestmark = pytest.mark.sim_only
PROGRAMS = REPOSITORY / "examples" / "cluster"
PAGE = (REPOSITORY / "docs" / "processes.md").read_text()
TOOL = [sys.executable, "-m", "cuda_gctx.cli"]


def commands(program: str) -> list[str]:
    """The words of the command that the page gives for a program."""
    [block] = [text for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if program in text]
    return block.replace("\\\n", " ").split()


def shown(program: str) -> list[str]:
    """The lines that the page shows below the command, in an order that does not depend on who is first."""
    after = PAGE[PAGE.index("```sh", PAGE.index(f"({'../examples/cluster/' + program})")) :]
    [text] = re.findall(r"```text\n(.*?)```", after, re.DOTALL)[:1]
    return sorted(text.splitlines())


def printed(program: str) -> list[str]:
    """What the command of the page prints, in this interpreter."""
    words = {
        "cuda-gctx": TOOL,
        "python": [sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    }
    command = [part for word in commands(program) for part in words.get(word, [word])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, cwd=REPOSITORY)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return sorted(done.stdout.splitlines())


def test_two_processes_share_weights_and_cache() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda.bindings is not installed here")
    assert printed("shared_weights.py") == shown("shared_weights.py")


@pytest.mark.long
def test_ranks_of_torchrun_agree_and_use_two_partitions_each() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    assert printed("torchrun_two_partitions.py") == shown("torchrun_two_partitions.py")


@pytest.mark.long
def test_services_share_the_cards_of_a_ray_cluster() -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    pytest.importorskip("ray", reason="ray is not installed here")
    assert printed("ray_two_services.py") == shown("ray_two_services.py")


def test_the_annotation_of_the_pod_is_a_layout_that_fits_and_both_containers_get_it() -> None:
    text = (PROGRAMS / "kubernetes.yaml").read_text()
    [layout] = set(re.findall(r'^ +cuda-gctx/layout: "(.*)"$', text, re.MULTILINE))
    assert "fieldPath: metadata.annotations['cuda-gctx/layout']" in text
    done = subprocess.run(
        [*TOOL, "plan", "--json", "--profile", "h200", layout], capture_output=True, text=True, check=True
    )
    plan = json.loads(done.stdout)
    assert plan["fits"]
    assert set(re.findall(r'"--as", "(\w+)"', text)) == {part["name"] for part in plan["partitions"]}


def test_the_pod_is_valid_yaml_and_refers_to_its_claim() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed here")
    claim, pod = yaml.safe_load_all(Path(PROGRAMS / "kubernetes.yaml").read_text())
    assert (claim["kind"], pod["kind"]) == ("ResourceClaimTemplate", "Pod")
    [shared] = pod["spec"]["resourceClaims"]
    assert shared["resourceClaimTemplateName"] == claim["metadata"]["name"]
    for container in pod["spec"]["containers"]:
        [variable] = container["env"]
        assert variable["name"] == "CUDA_GCTX_LAYOUT"
        assert container["resources"]["claims"] == [{"name": shared["name"]}]
