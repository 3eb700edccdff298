"""The `leveret` command."""
