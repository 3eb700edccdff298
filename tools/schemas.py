"""Write docs/schema/*.json from src/leveret/schemas.py.

python tools/schemas.py            write them
python tools/schemas.py --check    exit code 1 if they are not up to date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from leveret import schemas

FOLDER = Path(__file__).parent.parent / "docs" / "schema"


def main() -> int:
    wanted = {
        schemas.file_name(name): json.dumps(schemas.schema(name), indent=1, ensure_ascii=False) + "\n"
        for name in schemas.SCHEMAS
    }
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    if "--check" in sys.argv:
        return int(there != wanted)
    FOLDER.mkdir(exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
