"""One module per family of commands. Heavy imports stand inside the commands that need them."""
