"""`fleet ui`: one look at the cluster, as a page."""
