"""What the documents show is true: their Python runs, their commands parse, their tables list what there is, their links lead
somewhere. Nothing here starts Ray.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import tunelab
from tunelab.cli import VERBS, cli
from tunelab.engine import api
from tunelab.engine.loading import load_experiment

ROOT = Path(__file__).parents[2]
EXPERIMENTS, README, HOWTO = (ROOT / name for name in ("docs/experiments.md", "README.md", "docs/howto.md"))
GUIDES = [README, EXPERIMENTS, HOWTO]
DOCUMENTS = sorted([README, ROOT / "CHANGELOG.md", ROOT / "mlruns_config/README.md", *(ROOT / "docs").rglob("*.md")])
CONTEXT = click.Context(cli, info_name="tunelab", **cli.context_settings)  # click keeps what a command's first context said
PARTS = ("Experiment", "Objective", "Budget", "Retention", "Export", "TPE", "ASHA", "Grid")  # each has a table of parameters


@dataclass(frozen=True)
class Block:
    """A fenced block of code. `str` of it is where it begins, for pytest's names."""

    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    def is_about_sweeps(self) -> bool:
        """Whether running it would start, or look for, a sweep."""
        return re.search(r"tunelab\.(sweep|open)\(", self.text) is not None


def blocks(file: Path) -> list[Block]:
    found = []
    text = file.read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        found.append(Block(file, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


def prose(file: Path) -> str:
    return re.sub(r"^```.*?^```$", "", file.read_text(), flags=re.M | re.S)


def inline_code(file: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(file))]


PYTHON = [block for file in GUIDES for block in blocks(file) if block.language == "python"]


# ---- Python --------------------------------------------------------------------------------------------------------------


def test_there_is_python_in_every_guide():
    assert {block.file for block in PYTHON} == set(GUIDES)
    assert len(PYTHON) >= 12


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block):
    compile(block.text, str(block), "exec")


def test_the_guides_python_runs_from_top_to_bottom(monkeypatch):
    """As a reader would try it: each block after the ones before it. Those that start sweeps are left out."""
    monkeypatch.syspath_prepend(str(ROOT))
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks(EXPERIMENTS):
        if block.language == "python" and not block.is_about_sweeps():
            exec(compile(block.text, str(block), "exec"), names)
    experiments = {value.name for value in names.values() if isinstance(value, tunelab.Experiment)}
    assert experiments == {"cube", "digits-workers", "bowl"}
    assert names["experiment"].export is not None and names["experiment"].baseline == {"lr": 0.1}

    from tunelab.engine.ray.trainers import is_factory

    assert is_factory(names["make_trainer"]) and not is_factory(names["bowl"])
    assert names["make_trainer"]({"workers": 2}).scaling_config.num_workers == 2


def test_what_the_guide_says_of_its_space():
    names: dict[str, object] = {}
    texts = [block.text for block in blocks(EXPERIMENTS) if block.text.startswith(("from tunelab import Choice", "narrow ="))]
    texts += [block.text for block in blocks(EXPERIMENTS) if "from_ray" in block.text]
    assert len(texts) == 3
    exec("\n".join(texts), names)
    space, narrow, adam_only, from_ray = (names[name] for name in ("space", "narrow", "adam_only", "from_ray"))
    adam = {"lr": 1e-3, "dropout": 0.1, "width": 64, "layers": 2, "optimizer": "adam"}
    assert space.why_not(space.complete(adam)) == []
    assert space.complete(adam)["nesterov"] is False and "momentum" not in space.complete(adam)
    assert list(narrow.parameters["layers"].values()) == [2]
    assert "momentum" not in adam_only.parameters
    assert list(from_ray.parameters["layers"].values()) == [1, 2, 3, 4]


def test_howto_variants_are_found_as_it_says(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    (text,) = [block.text for block in blocks(HOWTO) if "def small" in block.text]
    file = tmp_path / "digits_variants.py"
    file.write_text(text)
    assert load_experiment(f"{file}:random_search").experiment.name == "digits-random"
    assert load_experiment(f"{file}:small").experiment.budget.trials == 4


def test_howto_space_is_one(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    (text,) = [block.text for block in blocks(HOWTO) if "bert_finetune" in block.text]
    names: dict[str, object] = {}
    exec(text, names)
    assert names["space"].parameters["lr"].high == 5e-5


def test_the_smallest_experiment_is_a_file_that_loads(tmp_path):
    file = tmp_path / "cube.py"
    file.write_text(next(block.text for block in blocks(EXPERIMENTS) if block.language == "python"))
    experiment = load_experiment(str(file)).experiment
    assert experiment.name == "cube" and experiment.last_step() == 50


def test_readme_shows_the_last_lines_of_the_digits_experiment():
    (shown,) = [block.text for block in blocks(README) if block.language == "python"]
    assert shown.startswith("experiment = Experiment(")
    assert (ROOT / "experiments/digits_mlp.py").read_text().endswith(f"\n{shown}")


# ---- the Python API ------------------------------------------------------------------------------------------------------


def api_uses(tree: ast.AST) -> list[tuple[str, set[str]]]:
    """(`sweep.best`, keywords of the call if it is one) for everything asked of `tunelab`, of a sweep or of its best trial."""
    owners = {"tunelab": "tunelab", "sweep": "sweep", "again": "sweep", "best": "best"}
    keywords = {id(node.func): {key.arg for key in node.keywords} for node in ast.walk(tree) if isinstance(node, ast.Call)}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners:
            uses.append((f"{owners[node.value.id]}.{node.attr}", keywords.get(id(node), set())))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "best":
            uses.append((f"best.{node.attr}", set()))
    return uses


def test_the_python_api_has_what_the_guides_use():
    kinds = {"tunelab": tunelab, "sweep": api.Sweep, "best": api.Best}
    seen = set()
    for block in PYTHON:
        if block.is_about_sweeps():
            for use, keywords in api_uses(ast.parse(block.text)):
                owner, name = use.split(".")
                fields = {field.name for field in dataclasses.fields(api.Best)} if owner == "best" else ()
                assert hasattr(kinds[owner], name) or name in fields, f"{block}: {use}"
                if keywords:
                    assert keywords <= set(inspect.signature(getattr(kinds[owner], name)).parameters), f"{block}: {use}"
                seen.add(use)
    assert {"tunelab.sweep", "tunelab.open", "sweep.best", "sweep.resume", "sweep.export", "best.checkpoint"} <= seen


# ---- parameters ----------------------------------------------------------------------------------------------------------


def tables(file: Path, names: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    """Name in the head's first cell -> (first cell, second cell) of each row, without the quotes."""
    found: dict[str, list[tuple[str, str]]] = {}
    for head, body in re.findall(r"^\| `(\w+)` \| default \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", file.read_text(), re.M):
        rows = [row.split("|")[1:3] for row in body.splitlines()]
        found[head] = [(name.strip().strip("`"), default.strip().strip("`")) for name, default in rows]
    assert set(found) == set(names)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_each_table_lists_all_parameters_with_their_defaults(name):
    told = dict(tables(EXPERIMENTS, PARTS)[name])
    signature = inspect.signature(getattr(tunelab, name)).parameters
    assert set(told) == set(signature)
    for field in dataclasses.fields(getattr(tunelab, name)):
        if field.default is not dataclasses.MISSING:
            assert told[field.name] == repr(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            assert told[field.name] == ("{}" if field.default_factory is dict else f"{field.default_factory.__name__}()")
        else:
            assert told[field.name] == "required"


def calls_of_ours(text: str) -> list[ast.Call]:
    """Calls of tunelab's classes in a piece of inline code."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [call for call in calls if call.func.id in tunelab.__all__]


def test_every_parameter_in_the_text_exists():
    known = {name for part in PARTS for name in inspect.signature(getattr(tunelab, part)).parameters}
    known |= {name for part in ("Float", "Int", "Choice") for name in inspect.signature(getattr(tunelab, part)).parameters}
    known |= set(inspect.signature(tunelab.sweep).parameters)
    known |= {"datasets"}  # a trainer's
    seen = 0
    for file in [*GUIDES, ROOT / "CHANGELOG.md"]:
        for code in inline_code(file):
            for call in calls_of_ours(code):
                for keyword in call.keywords:
                    assert keyword.arg in inspect.signature(getattr(tunelab, call.func.id)).parameters, f"{file.name}: `{code}`"
                    seen += 1
            if match := re.match(r"([a-z_]+)=", code):
                assert match[1] in known, f"{file.name}: `{code}`"
                seen += 1
    assert seen >= 15


def test_the_guide_names_every_part_of_an_experiment():
    text = EXPERIMENTS.read_text()
    missing = [name for name in tunelab.__all__ if not re.search(rf"\b{name}\b", text) and name != "__version__"]
    assert missing == []


# ---- commands ------------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[list[str]]:
    """Arguments of each `tunelab ...` in a line of shell, whatever stands before it."""
    words = shlex.split(text, comments=True)
    found: list[list[str]] = []
    for word in words:
        if word == "tunelab":
            found.append([])
        elif word in ("&&", "|", ";") or word.startswith("<"):
            found.append(["|"])
        elif found and found[-1] != ["|"]:
            found[-1].append(word)
    return [args for args in found if args and args != ["|"]]


def shell_lines(file: Path) -> list[str]:
    """Commands in blocks: after `$` in a session, and in indented lines."""
    sessions = [block.text for block in blocks(file) if block.language != "python"]
    lines = [line[2:] for text in sessions for line in text.splitlines() if line.startswith("$ ")]
    return lines + re.findall(r"^    (?=\S)(.*)$", prose(file), re.M)


def verb(name: str) -> click.Command:
    command = cli.get_command(CONTEXT, name)
    assert command is not None, f"there is no verb {name}"
    return command


def flags(command: click.Command) -> set[str]:
    context = CONTEXT if command is cli else click.Context(command, parent=CONTEXT)
    return {flag for parameter in command.get_params(context) for flag in [*parameter.opts, *parameter.secondary_opts]}


SHOWN = [(file, args) for file in GUIDES for line in shell_lines(file) for args in commands(line)]


def test_all_commands_are_found():
    assert len(SHOWN) >= 35
    assert {args[0] for _, args in SHOWN} >= set(VERBS) - {"best"}


@pytest.mark.parametrize(("file", "args"), SHOWN, ids=lambda value: " ".join(value) if isinstance(value, list) else value.name)
def test_a_command_in_a_block_would_be_understood(file, args):
    if args[0].startswith("-"):
        assert args[0] in flags(cli)
    else:
        verb(args[0]).make_context(args[0], args[1:], parent=CONTEXT)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_verbs_and_flags_in_the_text_exist(file):
    every = set().union(*(flags(verb(name)) for name in VERBS), flags(cli))
    for code in inline_code(file):
        if re.match(r"tunelab [a-z]", code):
            for args in commands(code):
                known = flags(verb(args[0]))
                assert {arg for arg in args if arg.startswith("--")} <= known | {"--help"}, f"`{code}`"
        elif code.startswith("--"):
            assert {word for word in code.split() if word.startswith("--")} <= every, f"`{code}`"


@pytest.mark.parametrize("file", GUIDES, ids=lambda file: file.name)
def test_files_that_commands_name_exist(file):
    """Those of the repository; `cube.py` and the variants are the reader's."""
    named = {arg.partition(":")[0] for line in shell_lines(file) for args in commands(line) for arg in args if ".py" in arg}
    missing = {name for name in named if not (ROOT / name).is_file()}
    assert missing <= {"cube.py", "experiments/digits_variants.py"}


# ---- links ---------------------------------------------------------------------------------------------------------------


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(file), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_relative_links_resolve(file):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(file)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        place = (file.parent / path).resolve() if path else file
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


def test_there_are_links_to_every_guide():
    targets = re.findall(r"\]\(([^)\s]+)\)", README.read_text())
    assert {"docs/experiments.md", "docs/howto.md", "docs/glossary.md", "docs/tour.md", "CHANGELOG.md"} <= set(targets)
