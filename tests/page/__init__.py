"""`fleet ui`: what a person sees, and what the server refuses."""
