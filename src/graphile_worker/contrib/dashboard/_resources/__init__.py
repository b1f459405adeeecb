"""The resources of the API, one module each: its routes and its handlers."""

from graphile_worker.contrib.dashboard._api import ApiRoute
from graphile_worker.contrib.dashboard._resources import (
    audit,
    bulk,
    completions,
    cron,
    diagnosis,
    enqueue,
    errors,
    history,
    job,
    jobs,
    limits,
    overview,
    queues,
    session,
    tasks,
    workers,
)

# In this order: `/jobs/count` before `/jobs/{id}`.
ROUTES: tuple[ApiRoute, ...] = (
    *session.ROUTES,
    *overview.ROUTES,
    *jobs.ROUTES,
    *completions.ROUTES,
    *enqueue.ROUTES,
    *job.ROUTES,
    *errors.ROUTES,
    *queues.ROUTES,
    *tasks.ROUTES,
    *limits.ROUTES,
    *workers.ROUTES,
    *cron.ROUTES,
    *bulk.ROUTES,
    *history.ROUTES,
    *audit.ROUTES,
    *diagnosis.ROUTES,
)
