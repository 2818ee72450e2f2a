"""What Fleet promises, measured beside the baseline: `python -m benchmarks NAME`."""
