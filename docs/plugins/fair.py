"""Priorities from the site's accounting, a command that prints a number for a uid:
leveret jobtap load ./fair.py command='["/usr/bin/shares"]'"""

import asyncio

from leveret.plugins.hooks import NOT_YET, Plugin


class Fair(Plugin):
    def __init__(self, *args):
        super().__init__(*args)
        self.shares = {}  # user → points, or the task that asks for them

    def priority(self, job):
        points = self.shares.get(job.userid)
        if points is None:
            self.shares[job.userid] = asyncio.create_task(self.ask(job.userid))
        return points + job.urgency if isinstance(points, int) else NOT_YET  # the job stays in PRIORITY

    async def ask(self, userid):
        try:
            command = [*self.conf["command"], str(userid)]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            self.shares[userid] = int((await process.communicate())[0])
        except (OSError, ValueError) as error:
            self.manager.log("no shares, no bonus", user=userid, why=str(error))
            self.shares[userid] = 0  # nobody waits for ever because accounting is down
        self.manager.reprioritize()

    def state_inactive(self, job):  # who has had a job has one point less
        if isinstance(points := self.shares.get(job.userid), int):
            self.shares[job.userid] = max(points - 1, 0)
            self.manager.reprioritize()
