"""Leveret: a job manager that speaks Flux's job model.

    from leveret import Client, AsyncClient, Executor

This file stays empty of imports (names are looked up when used): the command, the daemon and the exec
helper all pay for whatever is loaded here.
"""

__version__ = "0.1.0"

_LAZY = {"Client": "leveret.client", "AsyncClient": "leveret.aclient", "Executor": "leveret.executor"}


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'leveret' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(module), name)
