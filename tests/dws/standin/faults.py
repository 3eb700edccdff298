"""Faults of the way between a client and the server, and of the server itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .requests import Request

#: what a fault does to the request that it meets
ACTIONS = ("status", "delay", "cut-before", "cut-after", "expire", "drop-watch", "denied")


@dataclass
class Fault:
    """One thing that goes wrong.

    - `status`: answered with `code` (5xx, 429), nothing done
    - `denied`: 403 as by RBAC, nothing done
    - `delay`: answered `delay_s` late
    - `cut-before`: the connection is closed, nothing done
    - `cut-after`: done, but the connection is closed before the answer
    - `expire`: a list or watch is answered with 410
    - `drop-watch`: a watch ends in the middle of a line after `events` events
    """

    action: str
    method: str = ""
    resource: str = ""
    name: str = ""
    watch: bool | None = None
    #: how many matching requests are let through first, and how many are met (0: all)
    after: int = 0
    times: int = 1
    code: int = 503
    delay_s: float = 0.0
    events: int = 0
    seen: int = field(default=0, init=False)

    def meets(self, request: Request) -> bool:
        if self.method and self.method != request.method:
            return False
        if self.resource and self.resource != request.resource:
            return False
        if self.name and self.name != request.name:
            return False
        if self.watch is not None and self.watch != request.watch:
            return False
        self.seen += 1
        return self.seen > self.after and (not self.times or self.seen <= self.after + self.times)


class Faults:
    """What goes wrong, in the order it was asked for; the first that meets a request wins."""

    def __init__(self) -> None:
        self.planned: list[Fault] = []
        self.met: list[tuple[str, str]] = []
        #: every answer waits this long
        self.delay_s = 0.0
        self._random: Callable[[Request], Fault | None] | None = None

    def add(self, fault: Fault) -> Fault:
        if fault.action not in ACTIONS:
            raise ValueError(f"unknown fault {fault.action!r}")
        self.planned.append(fault)
        return fault

    def seeded(self, seed: int, share: float, *, total_max: int = 60) -> None:
        """From now on `share` of all requests meet a fault, drawn from `seed`; at most `total_max` of them."""
        dice, left = random.Random(seed), [total_max]

        def draw(request: Request) -> Fault | None:
            if dice.random() >= share or left[0] <= 0:
                return None
            left[0] -= 1
            if request.watch:
                return Fault(dice.choice(("drop-watch", "expire", "status", "cut-before")), events=dice.randrange(4))
            if request.method == "GET":
                return Fault(
                    dice.choice(("status", "cut-before", "delay")), code=dice.choice((500, 503, 504, 429)), delay_s=0.02
                )
            return Fault(
                dice.choice(("status", "cut-before", "cut-after", "cut-after", "delay")),
                code=dice.choice((500, 503, 504, 429)),
                delay_s=0.02,
            )

        self._random = draw

    def clear(self) -> None:
        self.planned.clear()
        self._random = None
        self.delay_s = 0.0

    def of(self, request: Request) -> Fault | None:
        fault = next((one for one in self.planned if one.meets(request)), None)
        if fault is None and self._random is not None:
            fault = self._random(request)
        if fault is not None:
            self.met.append((fault.action, f"{request.method} {request.path}"))
        return fault
