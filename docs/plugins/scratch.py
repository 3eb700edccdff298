"""A directory of its own for each job, in SCRATCH of its tasks: leveret jobtap load ./scratch.py root=/scratch"""

from leveret.plugins.hooks import EpilogHold, Plugin, PrologHold, SetEnv, WorkFailed


class Scratch(Plugin):
    def path(self, job):
        return f"{self.conf['root']}/{job.id}"

    def state_run(self, job):
        make = self.work(job, "scratch-make", ["mkdir", "-p", self.path(job)])
        return [SetEnv(SCRATCH=self.path(job)), PrologHold("scratch-make", work=make)]

    def state_cleanup(self, job):
        if "prolog/scratch-make" in {*job.holds, *job.closed}:  # undo what was begun, on every way out
            return EpilogHold("scratch-remove", work=self.remove_it(job))

    async def remove_it(self, job):
        await self.manager.closed(job.id, "prolog", "scratch-make")
        await self.work(job, "scratch-remove", ["rm", "-rf", self.path(job)])

    async def work(self, job, name, argv):
        result = await self.manager.run(job.id, name, argv)
        if result.status:
            raise WorkFailed(f"{name}: {result.tail.strip()}", result.status)

    async def resume(self, job, hold):
        if hold.name == "scratch-remove":
            return await self.remove_it(job)
        await self.work(job, hold.name, ["mkdir", "-p", self.path(job)])
