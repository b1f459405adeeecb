"""Tasks of `django.tasks`, for its backend. IMPORTS of the settings names this module."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

try:
    from django.tasks import TaskContext, task
except ImportError:
    from django_tasks import TaskContext, task

from graphile_worker import Discard, Retry, Snooze
from graphile_worker.contrib.django import job_options
from shop.models import Order

NOW = timedelta(0)


@task
def nothing(*args, **kwargs):
    return None


@task()
async def anothing(*args, **kwargs):
    return None


@task
def give_answer():
    return 42


@task
def give_order(order_id):
    return Order.objects.get(id=order_id).email


@task
async def agive_order(order_id):
    return (await Order.objects.aget(id=order_id)).email


@task
def fail():
    raise ValueError("no good")


@task
async def afail():
    raise ValueError("no good")


@task
def leave():
    raise SystemExit("no good")


@task
def fail_with_error():
    raise ValueError(ValueError("no good"))


@task
def return_function():
    return lambda: True


@task
def return_bytes():
    return {"bytes": b"text", "tuple": (1, 2)}


@task(takes_context=True)
def get_id(context):
    return context.task_result.id


@task(takes_context=True)
def describe_context(context, *, prefix):
    assert isinstance(context, TaskContext)
    job = context.job_context.job
    return [prefix, context.attempt, job.id, context.task_result.status, job.max_attempts]


@task(takes_context=True)
async def adescribe_context(context):
    return [context.attempt, context.job_context.job.id, context.task_result.worker_ids]


class PaymentError(Exception):
    pass


@task
@job_options(max_attempts=3, retry=lambda error, job: timedelta(hours=1))
def fail_twice(path):
    with Path(path).open("a") as file:
        file.write("x")
    count = Path(path).stat().st_size
    if count < 3:
        raise PaymentError(f"declined {count}")
    return count


@task
@job_options(max_attempts=5)
def discard():
    raise Discard("not needed")


@task
def snooze_once(path):
    file = Path(path)
    if not file.exists():
        file.write_text("x")
        raise Snooze(NOW)
    return "awake"


@task
@job_options(max_attempts=2)
def retry_later():
    raise Retry(timedelta(hours=1))


@task
@job_options(name="billing.charge", timeout=timedelta(hours=1), serial="billing")
def charge(amount):
    return amount


@task
@job_options(job_key="daily", max_attempts=4)
def daily(day):
    return day


@task
@job_options(unique="weekly", unique_for=timedelta(days=7))
def weekly():
    return None


@task(priority=10, queue_name="low")
def count(path, text):
    with Path(path).open("a") as file:
        file.write(text)


@task
def meet(folder, name, other):
    """Return once the other job runs too."""
    (Path(folder) / name).touch()
    deadline = time.monotonic() + 60
    while not (Path(folder) / other).exists():
        assert time.monotonic() < deadline, f"{other} does not run"
        time.sleep(0.02)
    return name


@task
def kill_once(path):
    """Kill the worker in the first run."""
    with Path(path).open("a") as file:
        file.write("x")
    if Path(path).stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@task
def wait_for_file(path, started):
    Path(started).touch()
    deadline = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < deadline, f"{path} is missing"
        time.sleep(0.02)
    return "done"


@task
@job_options(max_attempts=2, retry=lambda error, job: NOW)
def note(number):
    Order.objects.create(email=f"{number}")
    time.sleep(0.1)
    return number
