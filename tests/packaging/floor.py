"""Print the oldest version of every dependency that a pyproject.toml allows, except torch's, as requirements."""

import re
import sys
import tomllib
from pathlib import Path


def floors(pyproject: Path) -> list[str]:
    dependencies = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    pinned = [re.sub(r">=([^,]+).*", r"==\1", dependency) for dependency in dependencies]
    return [pin for pin in pinned if not pin.startswith("torch==")]


if __name__ == "__main__":
    print("\n".join(floors(Path(sys.argv[1]))))
