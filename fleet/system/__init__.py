"""The machine that a part of Fleet runs on: its state directory, processes, code, files."""
