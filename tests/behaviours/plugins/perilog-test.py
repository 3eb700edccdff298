"""What Flux's t/ plugin of this name was seen to do: a prolog at RUN, an epilog at CLEANUP, each over soon after."""

import asyncio

from leveret.plugins.hooks import EpilogHold, Finish, Plugin, PrologHold, Raise

SOON_S = 0.1


class PerilogTest(Plugin):
    def state_run(self, job):
        count = self.conf.get("prolog-count", 1)  # the others have one name, as they were seen to have
        more = [PrologHold(f"test-{count}", work=asyncio.sleep(SOON_S)) for _ in range(1, count)]
        return [PrologHold("test", work=self.prolog(job)), *more]

    def state_cleanup(self, job):
        return EpilogHold("test", work=asyncio.sleep(SOON_S))

    async def prolog(self, job):
        await asyncio.sleep(SOON_S)
        if self.conf.get("prolog-exception"):
            self.manager.answer(job.id, Raise("test", 0, "prolog test exception"), Finish("prolog", "test"))

    def stop(self, job, hold):
        return True
