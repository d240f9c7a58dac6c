"""What is written down about where a sweep came from: versions, code, machine. Nothing secret."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "tunelab", "ray", "optuna", "mlflow", "numpy",
    "torch", "transformers", "accelerate", "lightning", "xgboost", "lightgbm", "jax",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Version of Python and of each package that may matter and is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git(root: Path) -> dict[str, Any]:
    """`commit` and whether files were changed since (`dirty`); empty outside a git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
