"""What scripts write into the documentation is what they would write now: the drawing of the rooms, and the outputs of
examples on a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY
from .modules import module_of_docs

PAGE = """# A page

<!-- given:
import some_framework
-->
<!-- on a GPU: some_framework -->
```python
some_framework.run()
```

<!-- given:
first = 40
-->
```python
from cuda_gctx import Device

second = 2
```

<!-- on a GPU: json -->
```python
print(first + second, Device().sm_count)
```

<!-- recorded -->
```text
```

<!-- on a GPU: json -->
```python
raise KeyError("a key")
```

<!-- on a GPU: json -->
```python
import time

print("begun")
while True:
    time.sleep(1)
```

```python
after = "what no block on a GPU needs is not run"
```
"""


@pytest.mark.parametrize("script", ["draw_rooms.py", "record_outputs.py"])
def test_what_a_script_writes_is_up_to_date(script: str) -> None:
    command = [sys.executable, str(REPOSITORY / "docs" / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    return module_of_docs("record_outputs")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """What the blocks of the page above gave, each of them in another way."""
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    page.write_text(PAGE)
    program = f"""
import pathlib, sys
sys.path.insert(0, {str(REPOSITORY / "docs")!r})
import record_outputs
record_outputs.PAGE_LIMIT_S = 3
sys.exit(record_outputs.record_pages(pathlib.Path({str(out)!r}), [pathlib.Path({str(page)!r})]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "took more than 3 s" in done.stdout
    return out


@pytest.mark.sim_only
def test_each_block_that_needs_a_gpu_leaves_a_row(recorded: Path, recorder: object) -> None:
    result = json.loads(recorded.read_text())
    outcomes = [(row["outcome"], row["printed"]) for row in result["rows"]]
    assert outcomes == [
        ("left out: some_framework is not installed", ""),
        ("ran", "42 132\n"),
        ("KeyError in line 31: 'a key'", ""),
    ]
    assert result["simulated"]
    page = recorder.with_recorded(PAGE, "a page", result)  # type: ignore[attr-defined]
    assert page == PAGE.replace("```text\n", "```text\n42 132\n")


def test_an_output_of_another_block_is_not_shown(recorder: object) -> None:
    with pytest.raises(SystemExit, match="a page:26: the block above has not run"):
        recorder.with_recorded(PAGE, "a page", None)  # type: ignore[attr-defined]


def test_an_output_that_is_not_recorded_again_keeps_its_card(recorder: object) -> None:
    origin = {"driver": "580", "cuda": "13.0", "date": "2026-11-22"}
    first = {"card": "H200", **origin, "outputs": {"one": "1\n", "two": "2\n"}}
    kept = recorder.kept_of(first, {"one": "3\n"})  # type: ignore[attr-defined]
    assert kept == {"two": {"card": "H200", **origin, "printed": "2\n"}}
    second = {"card": "H100", **origin, "outputs": {"one": "3\n"}, "kept": kept}
    assert recorder.kept_of(second, {"one": "4\n"}) == kept  # type: ignore[attr-defined]
    section = recorder.section({**second, "outputs": {"one": "4\n"}})  # type: ignore[attr-defined]
    assert (
        section.index("on an H100") < section.index("### one.py") < section.index("### two.py") < section.index("H200")
    )
