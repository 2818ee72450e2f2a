"""What Fleet promises, measured beside the ordinary way: `python -m benchmarks NAME`."""
