"""Tasks in processes that keep their results; a process imports this module by its name."""

import math
from typing import Any

from graphile_worker import Retention, TaskRouter

KEEP_ALL = Retention(results=True, attempts=True)

tasks = TaskRouter[Any]()


@tasks.task(run_in="process", retention=KEEP_ALL)
def double_in_process(n: int) -> int:
    return 2 * n


@tasks.task(run_in="process", retention=KEEP_ALL)
async def awaited_in_process(n: int) -> list[int]:
    return [n]


@tasks.task(run_in="process", retention=KEEP_ALL)
def not_json_in_process(n: int) -> float:
    return math.nan


@tasks.batch_task(run_in="process", retention=Retention(attempts=True))
def batch_in_process(items: list[int]) -> None:
    pass
