"""Every benchmark, one after another, and one table of all their figures. A machine with nothing else to do is needed."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from harness import HERE, table

NAMES = (
    "turnaround", "trial_start", "slots", "first_report", "round_trip", "coalesced", "thousand_trials", "driver_report",
    "overhead", "native_training", "reading",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these; known: {', '.join(NAMES)}")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    rows, failed = [], []
    for name in args.names or NAMES:
        if not (HERE / f"{name}.py").is_file():
            print(f"{name}: there is no such script yet\n")
            continue
        began = time.monotonic()
        figures = run(name, args.quick)
        print(f"{name}: {time.monotonic() - began:.0f} s\n", flush=True)
        if figures is None:
            failed.append(name)
        else:
            rows += [{**figure, "name": f"{name}: {figure['name']}"} for figure in figures]
    print(table(rows))
    missed = [row["name"] for row in rows if row["reached"] is False]
    for what, names in (("Did not run", failed), ("Missed", missed)):
        if names:
            print(f"{what}: {'; '.join(names)}")
    return 1 if failed or missed else 0


def run(name: str, quick: bool) -> list[dict] | None:
    """Run one script and read its figures; None if it failed. `reading` has a table of its own."""
    command = [sys.executable, str(HERE / f"{name}.py")]
    if name == "reading":
        size = ["--trials", "500", "--runs", "1", "--results", str(HERE / "results" / "reading.quick.json")]
        return [] if subprocess.run([*command, *(size if quick else [])], check=False).returncode == 0 else None
    if subprocess.run([*command, *(["--quick"] if quick else [])], check=False).returncode != 0:
        return None
    file = HERE / "results" / f"{name}{'.quick' if quick else ''}.json"
    return json.loads(file.read_text(encoding="utf-8"))["figures"]


if __name__ == "__main__":
    sys.exit(main())
