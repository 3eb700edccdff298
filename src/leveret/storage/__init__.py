"""Near-node storage: the port, the workflow (pure), and the adapters that fit the port by shape."""
