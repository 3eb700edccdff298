"""The plugin interface and the built-in plugins."""
