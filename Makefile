# `make check` before every commit (about half a minute); `make test` runs everything, Ray included.
.PHONY: check lint fast test format

check: lint fast

lint:
	ruff check .
	ruff format --check .
	mypy
	lint-imports

fast:
	pytest -q --ignore=tests/ray

test:
	pytest

format:
	ruff check --fix .
	ruff format .
