"""The web page (later)."""
