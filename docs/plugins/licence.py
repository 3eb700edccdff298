"""Licences are dependencies, --dependency=licence:NAME: leveret jobtap load ./licence.py matlab=2"""

from leveret.plugins.hooks import DependencyHold, Finish, Plugin, Reject, Remember


class Licence(Plugin):
    def dependency_licence(self, job, dependency):
        name = dependency["value"]
        if name not in self.conf:
            return Reject(f"no such licence: `{name}`", "licences: " + ", ".join(self.conf))
        if len(self.jobs("has", name)) < self.conf[name]:
            return Remember(has=name)
        return [DependencyHold(f"licence:{name}"), Remember(wants=name)]

    def jobs(self, what, name):
        """Active jobs that have, or want, a licence: what was remembered with them, also by an earlier daemon."""
        return [job.id for job in self.manager.active() if self.manager.recall(job.id, what) == name]

    def state_inactive(self, job):
        name = self.manager.recall(job.id, "has")
        waiting = [other for other in self.jobs("wants", name) if other != job.id] if name else []
        if waiting:  # the licence goes to the job that has waited longest
            granted = Remember(wants=None, has=name), Finish("dependency", f"licence:{name}")
            self.manager.answer(waiting[0], *granted)

    def query(self):
        return {"used": {name: len(self.jobs("has", name)) for name in self.conf}}
