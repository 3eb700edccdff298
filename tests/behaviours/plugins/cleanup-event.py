from leveret.plugins.hooks import Plugin, Post


class CleanupEvent(Plugin):
    def state_cleanup(self, job):
        return Post("test-event")
