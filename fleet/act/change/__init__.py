"""A change from its beginning to its receipt."""
