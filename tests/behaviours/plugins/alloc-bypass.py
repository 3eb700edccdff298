"""Only its name is needed (jobtap.list)."""

from leveret.plugins.hooks import Plugin


class AllocBypass(Plugin):
    pass
