"""Load replayed through rules of scaling."""
