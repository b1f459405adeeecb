"""The event classes: their names, their groups, and that they are values."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from datetime import timedelta

import pytest

from graphile_worker import events
from graphile_worker.events import (
    EVENTS_BY_NAME,
    Event,
    JobEvent,
    Operation,
    PoolEvent,
    WorkerEvent,
)
from graphile_worker.jobs import Job, JobSpec
from tests.support.jobs import make_job

REFERENCE = {
    "pool:create",
    "pool:listen:connecting",
    "pool:listen:success",
    "pool:listen:error",
    "pool:listen:notification",
    "pool:listen:release",
    "pool:fatalError",
    "pool:release",
    "pool:gracefulShutdown",
    "pool:gracefulShutdown:error",
    "pool:gracefulShutdown:workerError",
    "pool:gracefulShutdown:complete",
    "pool:forcefulShutdown",
    "pool:forcefulShutdown:error",
    "pool:forcefulShutdown:complete",
    "localQueue:init",
    "localQueue:setMode",
    "localQueue:getJobs:complete",
    "localQueue:returnJobs",
    "localQueue:refetchDelay:start",
    "localQueue:refetchDelay:abort",
    "localQueue:refetchDelay:expired",
    "worker:create",
    "worker:release",
    "worker:stop",
    "worker:getJob:start",
    "worker:getJob:empty",
    "worker:getJob:error",
    "worker:fatalError",
    "job:start",
    "job:success",
    "job:error",
    "job:failed",
    "job:complete",
    "cron:starting",
    "cron:started",
    "cron:backfill",
    "cron:prematureTimer",
    "cron:overdueTimer",
    "cron:schedule",
    "cron:scheduled",
    "resetLocked:started",
    "resetLocked:success",
    "resetLocked:failure",
    "gracefulShutdown",
    "forcefulShutdown",
    "stop",
}
OURS = {
    "job:success:late",
    "job:lockLost",
    "job:interrupted",
    "job:recovered",
    "job:overrun",
    "pool:taskPaused",
    "pool:taskResumed",
    "pool:pausesChanged",
    "worker:restart",
    "pool:getJob:recovered",
    "pool:heartbeat:error",
    "pool:heartbeat:recovered",
    "lease:expired",
    "lease:lost",
    "recovery:error",
    "cron:error",
    "runner:started",
}
GROUPS = [Event, PoolEvent, WorkerEvent, JobEvent]
CLASSES = [it for it in vars(events).values() if isinstance(it, type)]
EVENTS = [it for it in CLASSES if issubclass(it, Event) and it not in GROUPS]
MOMENTS = [it for it in CLASSES if issubclass(it, Operation) and it is not Operation]


def job() -> Job:
    return make_job(id=7, attempts=1)


def test_every_event_of_node_has_a_class():
    assert set(EVENTS_BY_NAME) == REFERENCE | OURS


def test_every_name_belongs_to_exactly_one_class():
    assert sorted(event.name for event in EVENTS) == sorted(EVENTS_BY_NAME)
    assert list(EVENTS_BY_NAME.values()) == EVENTS


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_no_name(group):
    assert not hasattr(group, "name")
    assert group not in EVENTS_BY_NAME.values()


@pytest.mark.parametrize("prefix", ["pool:", "localQueue:", "worker:", "job:", "resetLocked:"])
def test_events_of_a_pool_have_its_id(prefix):
    assert all(issubclass(it, PoolEvent) for it in EVENTS if it.name.startswith(prefix))


def test_worker_and_job_events_are_in_their_groups():
    workers = [it.name for it in EVENTS if issubclass(it, WorkerEvent)]
    jobs = [it.name for it in EVENTS if issubclass(it, JobEvent)]

    assert {name.partition(":")[0] for name in workers} == {"worker", "job"}
    assert {name.partition(":")[0] for name in jobs} == {"job"}


@pytest.mark.parametrize("kind", [*EVENTS, *MOMENTS], ids=lambda it: it.__name__)
def test_each_class_is_frozen_and_has_a_docstring(kind):
    assert kind.__dataclass_params__.frozen
    assert is_dataclass(kind)
    assert kind.__doc__ is not None
    assert kind.__doc__.endswith(".")
    assert "\n" not in kind.__doc__


@pytest.mark.parametrize("kind", EVENTS, ids=lambda it: it.__name__)
def test_an_event_carries_no_live_object(kind):
    live = {"client", "cron", "ctx", "local_queue", "pool", "worker", "worker_pool"}

    assert live.isdisjoint(field.name for field in fields(kind))


def test_an_event_cannot_be_changed_and_equals_one_of_the_same_values():
    first = events.PoolCreated(pool_id="p1")
    other: events.Event = events.PoolReleased(pool_id="p1")

    with pytest.raises(FrozenInstanceError):
        first.pool_id = "p2"  # type: ignore[misc]  # what the test is about
    assert first == events.PoolCreated(pool_id="p1")
    assert first != other


def test_the_fields_of_an_event_are_given_by_name():
    with pytest.raises(TypeError):
        events.GetJobEmpty("p1", "w1")  # type: ignore[call-arg]  # what the test is about


def test_a_success_has_its_duration():
    took = timedelta(milliseconds=12)

    event = events.JobSucceeded(pool_id="p1", worker_id="w1", job=job(), duration=took)

    assert event.duration == took
    assert event.job.id == 7


def test_the_specs_about_to_be_added_can_be_replaced():
    adding = events.AddingJobs(specs=[JobSpec("resize")])

    adding.specs[0] = JobSpec("resize", priority=3)

    assert adding.specs == [JobSpec("resize", priority=3)]


def test_the_names_cannot_be_changed():
    with pytest.raises(TypeError):
        EVENTS_BY_NAME["job:other"] = events.JobStarted  # type: ignore[index]  # what the test is about
