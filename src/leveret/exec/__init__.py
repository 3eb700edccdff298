"""Execution: the helper process and the adapter that talks to it."""
