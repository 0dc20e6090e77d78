# SPDX-License-Identifier: Apache-2.0
"""Write the Grafana dashboards into collector-config/grafana/dashboards/.

python tools/dashboards
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from all_pages import pages_by_file

FOLDER: Final = Path(__file__).resolve().parents[2] / "collector-config" / "grafana" / "dashboards"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in pages_by_file().items():
        (FOLDER / name).write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
