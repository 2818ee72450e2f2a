"""Where reading begins, and what a commit's metadata holds."""
