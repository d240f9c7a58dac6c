"""Every private name of Ray's that `engine/ray` uses, with its parameters, so that an upgrade fails here first."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import tunelab.engine.ray
from tunelab.engine.ray import versions
from tunelab.errors import UnsupportedVersionError

NAMES = [(module, name) for module, names in versions.PRIVATE_NAMES.items() for name in names]


def find(module, name):
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_the_name_is_there_with_its_parameters(module, name):
    found, expected = find(module, name), versions.PRIVATE_NAMES[module][name]
    if expected is not None:
        signature = inspect.signature(found).parameters
        assert [parameter for parameter in signature if parameter != "self"] == [p for p in expected if p != "self"]


def imported_from_private_modules():
    """(module, name) of each import in `engine/ray` from a module of Ray's with an underscore in its path."""
    for file in Path(tunelab.engine.ray.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ray.") and "._" in node.module:
                yield from ((node.module, alias.name) for alias in node.names)


def test_every_private_import_is_listed():
    imports = set(imported_from_private_modules())
    assert len(imports) > 15
    listed = {(module, name.partition(".")[0]) for module, name in NAMES}
    assert imports <= listed


@pytest.mark.parametrize("found", ["2.59.1", "2.61.0", "3.0.0"])
def test_another_version_is_refused_with_the_range(monkeypatch, found):
    monkeypatch.setattr(versions, "version", lambda package: found)
    with pytest.raises(UnsupportedVersionError, match=rf"Ray {found} is installed; tunelab works with ray>=2.60,<2.61"):
        versions.check_ray()


def test_the_installed_version_is_accepted():
    versions.check_ray()
