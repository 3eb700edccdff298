"""Results go to tape before a job is over, whatever became of it: leveret jobtap load ./tape.py archive=/usr/bin/archive"""

from leveret.plugins.hooks import EpilogHold, Plugin, WorkFailed


class Tape(Plugin):
    def state_cleanup(self, job):
        if job.allocated:  # there is nothing to archive of a job that never ran
            return EpilogHold("to-tape", work=self.archive(job), deadline_s=3600)

    async def archive(self, job):
        cwd = self.manager.jobspec(job.id)["attributes"]["system"]["cwd"]
        # a process on the job's first node, once for this job and name: after a restart it is waited for, not repeated
        result = await self.manager.run(job.id, "to-tape", [self.conf["archive"], str(job.id)], cwd=cwd)
        if result.status:
            raise WorkFailed(f"to-tape: {result.tail.strip()}", result.status)

    async def resume(self, job, hold):
        await self.archive(job)
