"""docs/run_on_gpu.py runs the blocks of pages that need a GPU, and tells how each of them ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

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

<!-- on a GPU: json -->
```python
raise KeyError("a key")
```

<!-- on a GPU: json -->
```python
import time

while True:
    time.sleep(1)
```

```python
after = "a block after the last one that needs a GPU does not run"
```
"""


@pytest.mark.sim_only
def test_each_block_that_needs_a_gpu_has_an_outcome(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    program = "import sys, json, pathlib, run_on_gpu; page = pathlib.Path(sys.argv[1])\n"
    program += "print(json.dumps(run_on_gpu.rows_of_page(page, 3)))"
    command = [sys.executable, "-c", program, str(page)]
    done = subprocess.run(command, cwd=REPOSITORY / "docs", capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [(row["line"], row["outcome"], row["printed"]) for row in json.loads(done.stdout)] == [
        (7, "left out: some_framework is not installed", ""),
        (21, "ran", "42 132\n"),
        (26, "KeyError in line 27: 'a key'", ""),
        (0, "took more than 3 s", ""),
    ]
