"""The order of Java's hash tables, and the hash of topics: both stand in every record."""
