# `make check` before every commit: lint, types, layers and the quick tests. `make test`: all tests, Ray last.
.PHONY: check lint fast test format

check: lint fast

lint:
	ruff check .
	ruff format --check .
	mypy
	lint-imports

fast:
	pytest -q -m "not slow" --ignore=tests/ray

test:
	pytest

format:
	ruff check --fix .
	ruff format .
