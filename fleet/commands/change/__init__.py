"""What changes groups, and a fleet's beginning and end."""
