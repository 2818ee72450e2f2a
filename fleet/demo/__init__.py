"""The demo: an example entrypoint, a stream of orders, and a fleet that changes while it runs."""
