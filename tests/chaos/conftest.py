"""The long sets run when they are asked for: `pytest tests/chaos -m chaos`."""

from __future__ import annotations

import pytest

from tests.chaos.checks import summary
from tests.chaos.harness import FILE, ROOT, Run


def pytest_collection_modifyitems(config, items):
    if "chaos" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("chaos")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.failed:
        again = f'pytest -m "chaos or not chaos" "{item.nodeid}"'
        report.sections.append(("again", f"The seed is in the test's name. Once more with:  {again}"))
    return report


@pytest.fixture(scope="session")
def experiments():
    from tunelab.engine.loading import load_experiment

    return {name: load_experiment(f"{ROOT / FILE}:{name}").experiment for name in ("one", "pairs")}


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory, experiments):
    """`unbroken(trials)`: the summary of a sweep that nobody killed."""
    known = {}

    def of(trials):
        if trials not in known:
            run = Run(tmp_path_factory.mktemp("unbroken"), trials=trials)
            try:
                run.finish()
                known[trials] = summary(run, experiments["one"])
                assert sum(run.executed().values()) == len(run.executed())
            finally:
                run.clean()
        return known[trials]

    return of


@pytest.fixture
def chaos(tmp_path):
    """`chaos(experiment, ...)`: a sweep to kill; whatever a failed test leaves of it is ended."""
    runs = []

    def make(experiment="one", **options):
        runs.append(Run(tmp_path / f"home{len(runs)}", experiment, **options))
        return runs[-1]

    yield make
    for run in runs:
        run.clean()
