"""Kustomize bases and overlays, images, and a cluster to try: what a team reads and edits."""
