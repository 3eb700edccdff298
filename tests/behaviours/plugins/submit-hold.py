from leveret.plugins.hooks import Plugin, Post


class SubmitHold(Plugin):
    def state_depend(self, job):
        return Post("urgency", {"userid": job.userid, "urgency": 0})
