"""Keeps a cache of one kind in step with the server: list, diff, watch, and again.

A watch that ends is taken up from the last version seen; one whose version is too old (410) is preceded by a new list,
whose difference to the cache gives the deletions that nobody told of. Failures are followed by pauses with jitter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from leveret.storage.kube import OPEN, Backoff, Kind, Kube, KubeError, KubeUnreachable
from leveret.storage.kube_cache import Cache, Means, Object

#: after "forbidden" and "not there": these change by hand
_SELDOM_S = 60.0


class Reflector:
    """`kind` finds the resource (again after a 404: the served version may have changed)."""

    def __init__(
        self,
        name: str,
        kube: Kube,
        kind: Callable[[], Awaitable[Kind]],
        changed: Callable[[Means, Object], None],
        *,
        namespace: str = "",
        backoff: Backoff,
        dice: random.Random,
        told: Callable[[str, str], None],
        seldom_s: float = _SELDOM_S,
    ) -> None:
        self.name = name
        self.cache = Cache()
        #: a complete list has been made, and the server answers
        self.synced = False
        #: the server does not show this kind: not installed, or not allowed
        self.off = False
        #: it has been tried; and there was an answer, be it No
        self.first = asyncio.Event()
        self.answered = asyncio.Event()
        self._open = False  #: the watch was taken by the server
        self._kube = kube
        self._kind = kind
        self._changed = changed
        self._namespace = namespace
        self._backoff = backoff
        self._dice = dice
        self._told = told
        self._seldom_s = seldom_s

    async def run(self) -> None:
        while True:
            try:
                kind = await self._kind()
                if not self.cache.version:
                    await self._list(kind)
                await self._watch(kind)
            except KubeUnreachable as error:
                if not self._open:  # a watch that was cut is nothing, unless the next attempt fails too
                    self.synced = False
                    self._told(self.name, str(error))
                self._open = False
                self.first.set()
                await self._backoff.pause()
            except KubeError as error:
                await self._refused(error)

    async def _refused(self, error: KubeError) -> None:
        if error.code == 410:
            self.cache.expired()
            self._open = False
            # many of us may be told at the same moment
            await asyncio.sleep(self._backoff.first_s * self._dice.random())
            return
        self.cache.expired()
        self._open = False
        self._told(self.name, f"{self.name}: {error.message}")
        self.synced = False
        self.off = error.code in (403, 404)
        self.first.set()
        self.answered.set()
        if self.off:
            await asyncio.sleep(self._seldom_s * (0.5 + self._dice.random() / 2))
        else:
            await self._backoff.pause()

    async def _list(self, kind: Kind) -> None:
        objects, version = await self._kube.list(kind, self._namespace)
        for means, one in self.cache.replace(list(objects), version):
            self._changed(means, one)
        self._fine()

    async def _watch(self, kind: Kind) -> None:
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        seconds = self._dice.randint(240, 300)
        async for event in self._kube.watch(kind, self.cache.version, self._namespace, timeout_s=seconds):
            if event is OPEN:
                self._open = True
                self._fine()
                continue
            events += 1
            means, one = self.cache.event(event)
            if means is not Means.NOTHING:
                self._changed(means, one)
        self._open = False
        if not events and loop.time() - began < 1:
            await asyncio.sleep(self._backoff.first_s)  # a server that ends every watch at once

    def _fine(self) -> None:
        self._backoff.reset()
        self.synced, self.off = True, False
        self._told(self.name, "")
        self.first.set()
        self.answered.set()
