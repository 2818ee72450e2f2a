"""The Kubernetes integration: found through the entry point `fleet.runtimes`."""
