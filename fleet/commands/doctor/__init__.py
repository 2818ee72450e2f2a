"""`fleet doctor`: what has to be right."""
