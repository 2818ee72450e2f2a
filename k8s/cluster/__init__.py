"""A real Kubernetes of one node on this machine, for tests and for trying Fleet.

Problem: what Deployments, evictions and roles do can only be seen on a real control plane and a
real kubelet, and neither an engine nor a cluster is at hand on a laptop or in CI. Choice: the
programs of one Kubernetes release, built from Go modules, with etcd, containerd and runc of the
distribution; all of them live in a mount, pid and network namespace of their own (boundary.py).
So two clusters do not meet, the machine's routes, rules and kernel settings stay as they are,
nothing in it can reach out, and killing one process ends all and unmounts all. Cost: root, and
eight minutes of building once.
"""
