"""Tests, one folder per behaviour. A package, so that `tests.support` is found everywhere."""
