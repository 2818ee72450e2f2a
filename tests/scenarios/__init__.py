"""The simulated members beside real ones, on a real broker."""
