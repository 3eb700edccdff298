from leveret.plugins.hooks import Plugin, Reject


class CreateReject(Plugin):
    def create(self, job, spec):
        return Reject("nope")
