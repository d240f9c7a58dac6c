"""How to install what is missing: the extra of tunelab that brings it, else the package by its own name."""

from __future__ import annotations

import re
from importlib import metadata

# Modules whose package has another name. (Only those that people who train models are likely to import.)
_PACKAGES = {
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "pytorch_lightning": "pytorch-lightning",
    "tensorflow": "tensorflow",
}
_REQUIREMENT = re.compile(r"""(?P<name>[A-Za-z0-9._-]+).*extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def how_to_install(module: str) -> str:
    """`Run: pip install 'tunelab[transformers]'` for a module that could not be imported.

    A module that no extra of ours brings may also be a file of the user's that lies elsewhere, so that is said too.
    """
    package = _normal(_PACKAGES.get(module, module))
    by_extra: dict[str, list[str]] = {}
    try:
        lines = metadata.requires("tunelab") or []
    except metadata.PackageNotFoundError:
        lines = []
    for line in lines:
        if match := _REQUIREMENT.match(line):
            by_extra.setdefault(match["extra"], []).append(_normal(match["name"]))
    extras = [extra for extra, packages in by_extra.items() if package in packages and extra != "dev"]
    if extras:  # the smallest one that brings it
        return f"Run: pip install 'tunelab[{min(extras, key=lambda extra: len(by_extra[extra]))}]'"
    own = "If it is a file of yours, put it beside the experiment or in the project's root."
    return f"If it is a package, run: pip install {package}. {own}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
