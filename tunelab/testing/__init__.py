"""For authors of searchers and schedulers: contract tests to inherit (`contracts`) and sweeps in milliseconds (`simulate`)."""
