"""The machine that a part of Fleet runs on: its home, processes, code, files."""
