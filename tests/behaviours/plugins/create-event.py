from leveret.plugins.hooks import Plugin, Post


class CreateEvent(Plugin):
    def create(self, job, spec):
        return Post("test-event")
