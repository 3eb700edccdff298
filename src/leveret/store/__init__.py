"""Durable storage (SQLite)."""
