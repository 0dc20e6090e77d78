# SPDX-License-Identifier: Apache-2.0
"""Let a virtual environment use the PyTorch of the Python that runs this, so that nobody installs it twice.

    python tools/borrow_torch.py .venv/bin/python

Exit code 0: the environment can import torch (its own, or now this Python's). 1: there is none to lend.

A `.pth` file adds this Python's package folders behind the environment's own. `venv --system-site-packages`
would not do: made from inside another virtual environment it shows the system's packages, not that one's.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

PTH = "borrowed-torch.pth"


def imports_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def main(python: str) -> int:
    if imports_torch(python):
        return 0
    if find_spec("torch") is None:
        return 1
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    lent = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    pth = Path(asked.stdout.strip()) / PTH
    pth.write_text("".join(f"{path}\n" for path in lent), encoding="utf-8")
    if imports_torch(python):
        print(f"using the PyTorch of {sys.executable}")
        return 0
    pth.unlink()
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: borrow_torch.py PYTHON")
    sys.exit(main(sys.argv[1]))
