"""Kubernetes: runtime, slots as Lease objects, manifests. The only room with the client."""
