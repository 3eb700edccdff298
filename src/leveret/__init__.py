"""Leveret: a job manager that speaks Flux's job model.

This file stays empty of imports: the command, the daemon and the exec helper
all pay for whatever is loaded here.
"""

__version__ = "0.1.0"
