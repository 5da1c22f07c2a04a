"""What pyproject.toml cannot say: in a checkout, the extra ``lucid-accel`` is the package beside this file."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

accel = Path(__file__).resolve().parent / "src" / "lucid_accel"
in_checkout = (accel / "pyproject.toml").is_file() and "sdist" not in sys.argv
test = [
    "pytest>=8.2",
    "pytest-xdist>=3.6",
    "hypothesis>=6.100",
    "ruff>=0.9",
    "mypy>=1.15",
    "build>=1.2",
    "setuptools>=77",
    "types-PyYAML",
]

setup(
    # Naming the one package, instead of the folder src, keeps an editable install from exposing lucid_accel too.
    package_dir={"lucid_core": "src/lucid_core"},
    packages=find_packages("src", include=["lucid_core", "lucid_core.*"]),
    extras_require={
        "lucid-accel": [f"lucid-accel @ {accel.as_uri()}" if in_checkout else "lucid-accel==0.1.0"],
        "test": test,
        "dev": test,
    },
)
