"""The benchmarks: `fleet bench NAME` prints our figures beside the ordinary way's, from one run."""
