"""A worker's slot: taken, held, asked for, given up."""
