"""The page: one look at the cluster, shown to whoever watches."""
