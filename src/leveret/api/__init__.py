"""The HTTP API over a Unix socket."""
