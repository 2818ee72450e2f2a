"""What a fleet is tried out with, by the demo, the benchmarks and the tests: a home, a numbered
stream, a journal of what was processed, and the account of both.
"""
