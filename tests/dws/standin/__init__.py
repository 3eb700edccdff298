"""A Kubernetes API server with DWS for tests. It imports nothing of Leveret."""

from .cluster import Standin

__all__ = ["Standin"]
