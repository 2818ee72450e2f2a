"""`fleet bench NAME`: one module for each benchmark."""
