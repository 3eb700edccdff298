"""Every job needs a project that the site knows: leveret jobtap load ./require_project.py projects='["ocean"]'"""

from leveret.plugins.hooks import Plugin, Reject


class RequireProject(Plugin):
    def config(self, config):
        if not isinstance(self.conf.get("projects"), list):
            return Reject("`projects` must be a list of names")

    def known(self, project):
        if project not in self.conf["projects"]:
            return Reject(f"unknown project `{project}`", "projects: " + ", ".join(self.conf["projects"]))

    def validate(self, job, spec):
        return self.known(spec["attributes"]["system"].get("project", ""))

    def update_project(self, job, value):  # leveret update JOBID project=VALUE
        return self.known(value)
