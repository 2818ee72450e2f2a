"""Where reading begins, and what a commit says of it."""
