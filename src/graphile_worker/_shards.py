"""BaseShards: which database gets a job, and what the async and the blocking shards share."""

import math
import random
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar

from graphile_worker._client import BaseClient
from graphile_worker._sql.plans.shards import (
    ShardJobs,
    plan_count_shard_jobs,
    plan_identify,
    plan_lock_kept,
)
from graphile_worker._sql.queries.shards import DatabaseIdentity
from graphile_worker._sql.query import Plan
from graphile_worker._support.clock import Clock
from graphile_worker._support.lazy_dataclass import LazyDataclass
from graphile_worker.errors import ConfigurationError, JobSpecError, ShardError
from graphile_worker.hooks import Hooks, ShardHooks
from graphile_worker.jobs import Job, JobSpec, check_text
from graphile_worker.options import NotifyMode
from graphile_worker.tasks import TaskRouter

if TYPE_CHECKING:
    import asyncio

    from graphile_worker.crontab import ParsedCronItem

T = TypeVar("T")

# While a shard is unreachable, how often it is asked whether a caller's connections are its own.
IDENTIFY_INTERVAL_SECONDS = 60.0

Route = Callable[[str, Sequence[str]], str]


class ClientOptions(TypedDict, total=False):
    """Arguments of `Client`, besides its database."""

    schema: str | None
    ext_schema: str | None
    use_local_time: bool
    max_payload_bytes: int | None
    prepared_statements: bool
    hooks: Hooks | None
    clock: Clock | None
    tasks: TaskRouter[Any] | None
    actor: str | None
    notify: NotifyMode
    notify_interval: timedelta


def rendezvous(key: str, names: Sequence[str]) -> str:
    """Choose a shard by rendezvous hashing: another shard takes over only its share of the keys.

    The choice is the name with the greatest SHA-256 digest of the name, a zero byte and the key.

    Args:
        key: The shard key.
        names: Names of the shards.

    Returns:
        One of the names.
    """
    # Imported here, so that programs without shards start without it.
    import hashlib

    content = b"\0" + key.encode()
    return max(names, key=lambda name: hashlib.sha256(name.encode() + content).digest())


def get_shard_key(spec: JobSpec) -> str | None:
    """Return what decides the shard of a job, or None if any shard will do.

    Raises:
        JobSpecError: Its key and its queue could be on two shards.
    """
    if not isinstance(spec, JobSpec):
        # The client rejects it.
        return None
    if spec.shard_key is not None:
        return spec.shard_key
    # A job has at most one of both keys.
    name, key = ("job_key", spec.job_key) if spec.unique is None else ("unique", spec.unique)
    if None not in (key, spec.queue_name) and key != spec.queue_name:
        raise JobSpecError(
            "shard_key",
            None,
            f"{name} {key!r} and queue_name {spec.queue_name!r} may be on two shards. "
            "Pass the shard_key that all jobs of this key and this queue share.",
            "22023",
        )
    return key if key is not None else spec.queue_name


def get_cron_shard_key(item: "ParsedCronItem") -> str:
    """Return what decides the shard of a cron item: the shard key of its jobs, or its identifier.

    Raises:
        ConfigurationError: The key and the queue of its jobs could be on two shards.
    """
    try:
        key = get_shard_key(item.spec)
    except JobSpecError as error:
        raise ConfigurationError(
            f"cron item {item.identifier!r} has the key {item.spec.job_key or item.spec.unique!r} "
            f"and the queue {item.spec.queue_name!r}, which may be on two shards. Remove one, or "
            "give both the same name."
        ) from error
    return item.identifier if key is None else key


class OnShard(LazyDataclass):
    """A call of the client of one shard."""

    name: str
    call: Callable[[Any], Any]


class ShardIdentities:
    """Which database each shard is. Shards and those for their tasks have one in common.

    Attributes:
        names: Names of the shards that have answered, by their databases.
        identify_at: When to ask the shards that have not answered again, by `time.monotonic`.
        has_conflict: Whether two shards were the same database when they were last asked.
        tasks: Tasks that ask them in the background.
    """

    def __init__(self) -> None:
        self.names: dict[DatabaseIdentity, str] = {}
        self.identify_at = -math.inf
        self.has_conflict = False
        self.tasks: set[asyncio.Task[None]] = set()


# A procedure of several calls, which receives their results.
Calls = Generator[OnShard, Any, T]


class ShardStatus(LazyDataclass):
    """The jobs of one shard.

    Attributes:
        name: Name of the shard.
        is_new: Whether it is listed in `new`.
        is_draining: Whether it is listed in `draining`.
        total: Number of jobs.
        misplaced: Number of jobs whose key or queue now belongs to another shard. On a draining
            shard, all of its jobs.
    """

    name: str
    is_new: bool
    is_draining: bool
    total: int
    misplaced: int


class BaseShards:
    """The names and databases of shards, and the rules that assign jobs to them."""

    def __init__(
        self,
        databases: Mapping[str, object],
        *,
        route: Route = rendezvous,
        new: Collection[str] = (),
        draining: Collection[str] = (),
        **options: Any,
    ) -> None:
        self.databases = MappingProxyType(dict(databases))
        self.names = tuple(self.databases)
        self.route = route
        self.new = _check_names("new", new, self.names)
        self.draining = _check_names("draining", draining, self.names)
        _check_shards(self.names)
        self._current = tuple(name for name in self.names if name not in self.draining)
        self._former = tuple(name for name in self.names if name not in self.new)
        for names, argument in ((self._current, "draining"), (self._former, "new")):
            if not names:
                raise ConfigurationError(f"{argument} lists all shards. Leave at least one out.")
        self._options = options
        self._hooks = options.get("hooks") or Hooks()
        self._clients: dict[str, Any] = {}
        # Those of workers in this process, on connections that the workers close.
        self._worker_clients: dict[str, Any] = {}
        # Those with which tasks of these workers add jobs.
        self._task_clients: dict[str, Any] = {}
        self._identities = ShardIdentities()
        # The shard of the task that adds jobs, which then gets those without a key.
        self._local: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.names)}>"

    def find_shard(self, key: str) -> str:
        """Return the name of the shard that gets jobs with this shard key.

        Args:
            key: The shard key.

        Returns:
            The name of the shard.

        Raises:
            ConfigurationError: The function `route` returned another name.
        """
        return self._route(key, self._current)

    def _route(self, key: str, names: tuple[str, ...]) -> str:
        name = self.route(check_text("shard_key", key), names)
        if name not in names:
            raise ConfigurationError(f"route returned {name!r}. Return one of {', '.join(names)}.")
        return name

    def _find_former(self, key: str) -> str:
        """Return the shard that got this key before the change that is under way."""
        if not self.new and not self.draining:
            return self.find_shard(key)
        return self._route(key, self._former)

    def _get_client(self, name: str) -> Any:
        client = self._worker_clients.get(name) or self._clients.get(name)
        if client is None:
            if name not in self.databases:
                raise ConfigurationError(
                    f"no shard is called {name!r}. Shards: {', '.join(self.names)}"
                )
            options = {**self._options, "hooks": ShardHooks(self._hooks, name)}
            client = self._clients.setdefault(name, self._open_client(name, options))
        return client

    def _open_client(self, name: str, options: Mapping[str, Any]) -> BaseClient:
        raise NotImplementedError

    @contextmanager
    def _attach_worker(
        self, name: str, client: BaseClient, task_client: BaseClient
    ) -> Iterator[None]:
        """Use the clients of a worker for its shard inside the block: one is for its tasks."""
        pairs = (self._worker_clients, client), (self._task_clients, task_client)
        for clients, own in pairs:
            clients[name] = own
        try:
            yield
        finally:
            for clients, own in pairs:
                if clients.get(name) is own:
                    del clients[name]

    def _localize(self, name: str) -> Self:
        """Return the same shards for the tasks of one of them."""
        local = self._derive(type(self))
        local._clients = self._clients
        local._worker_clients = self._task_clients
        local._identities = self._identities
        local._local = name
        return local

    def _run_in_background(self, calls: "Calls[None]") -> None:
        """Run a procedure while the caller continues. Its error is dropped."""
        raise NotImplementedError

    def _derive(self, kind: "type[S]", **options: Any) -> "S":
        """Return shards of another kind, with the options of an app or a worker too.

        Raises:
            ConfigurationError: An option has another value here, so that jobs could be added where
                no worker looks for them.
        """
        for name, value in options.items():
            own = self._options.get(name)
            if own is not None and own != value:
                raise ConfigurationError(
                    f"the shards have {name}={own!r}, and their app or worker has {value!r}. "
                    f"Pass {name} to the app or worker only, or the same value to both."
                )
        return kind(
            self.databases,
            route=self.route,
            new=self.new,
            draining=self.draining,
            **{**self._options, **options},
        )

    # Procedures

    def _build_spec(self, identifier: str, payload: Any, options: Mapping[str, Any]) -> JobSpec:
        client: BaseClient = self._get_client(self.names[0])
        return client._build_spec(identifier, payload, options)

    def _add_spec(self, spec: JobSpec, conn: object) -> Calls[Job]:
        located = None if conn is None else (yield from self._locate(conn))
        name = yield from self._choose(spec, located, conn, self._choose_any())
        if conn is None and (former := self._find_sticky(spec)) not in (None, name):
            assert former is not None
            job = yield OnShard(former, partial(self._add_where_kept, spec))
            if job is not None:
                return _set_shard(job, former)
        job = yield OnShard(name, lambda client: client.add_spec(spec, conn=conn))
        return _set_shard(job, name)

    def _add_jobs(self, specs: Iterable[JobSpec], conn: object) -> Calls[list[Job]]:
        client: BaseClient = self._get_client(self.names[0])
        listing = [client._apply_task_options(spec) for spec in specs]
        located = None if conn is None else (yield from self._locate(conn))
        # One shard for all jobs without a key, so that these are added together or not at all.
        any_shard = self._choose_any()
        groups: dict[str, list[int]] = {}
        moving: list[int] = []
        for index, spec in enumerate(listing):
            name = yield from self._choose(spec, located, conn, any_shard)
            if conn is None and self._find_sticky(spec) not in (None, name):
                moving.append(index)
            else:
                groups.setdefault(name, []).append(index)
        if moving:
            # These are added one by one, so a mistake would be found after the first of them.
            client._check_specs(listing)
        jobs: dict[int, Job] = {}
        try:
            for name, indexes in groups.items():
                part = [listing[index] for index in indexes]
                added = yield OnShard(name, partial(_add_part, part, conn))
                jobs |= zip(indexes, (_set_shard(job, name) for job in added), strict=True)
            for index in moving:
                jobs[index] = yield from self._add_spec(listing[index], conn)
        except Exception as error:
            if jobs and conn is None:
                done = sorted({str(job.shard) for job in jobs.values()})
                error.add_note(f"{len(jobs)} jobs were added, on shards {', '.join(done)}")
            raise
        return [jobs[index] for index in range(len(listing))]

    def _choose_any(self) -> str:
        if self._local is not None and self._local not in self.draining:
            return self._local
        return random.choice(self._current)

    def _choose(
        self, spec: JobSpec, located: str | None, conn: object, any_shard: str
    ) -> Calls[str]:
        """Return the shard of a new job. With a caller's connection it must be `located`."""
        key = get_shard_key(spec)
        if key is None:
            return located or any_shard
        name = self.find_shard(key)
        if located is None:
            return name
        former = self._find_sticky(spec)
        if former not in (None, name):
            assert former is not None
            look = partial(_find_kept, spec, conn if located == former else None)
            if (yield OnShard(former, look)):
                name = former
        self._check_located(located, [name], key)
        return name

    def _check_located(self, located: str, names: Collection[str], key: str) -> None:
        if located not in names:
            raise ShardError(
                f"the connection belongs to shard {located!r}, and jobs with shard_key {key!r} to "
                f"{' or '.join(map(repr, names))}. No transaction spans two shards: add the job "
                "without conn, or pass the shard_key of what the transaction changes."
            )

    def _find_sticky(self, spec: JobSpec) -> str | None:
        """Return the former shard of a job whose key or queue must not be on two shards."""
        key = get_shard_key(spec)
        if key is None:
            return None
        if spec.job_key is None and spec.unique is None and spec.queue_name is None:
            return self.find_shard(key)
        return self._find_former(key)

    def _locate(self, conn: object) -> Calls[str]:
        """Return the shard of a caller's connection, by its server and database."""
        identity = yield OnShard(self.names[0], partial(_run_plan, plan_identify(), conn))
        known = self._identities
        name = known.names.get(identity)
        if name is None or known.has_conflict:
            yield from self._identify_all()
            name = known.names.get(identity)
        elif len(known.names) < len(self.names) and time.monotonic() >= known.identify_at:
            # A server that was cloned has the identity of its clone. So no shard is known for
            # certain before all have answered. But the caller's transaction may hold locks, and
            # must not wait for a shard that it does not need.
            known.identify_at = time.monotonic() + IDENTIFY_INTERVAL_SECONDS
            self._run_in_background(self._identify_all())
        if name is None:
            raise ShardError(
                f"the connection is to database {identity.name!r} of another server or of none of "
                f"the shards {', '.join(self.names)}. Connect to a shard, or add the job without "
                "conn."
            )
        return name

    def _identify_all(self) -> Calls[None]:
        error = None
        known = self._identities
        had_conflict = known.has_conflict
        answered: dict[DatabaseIdentity, str] = {}
        known.identify_at = time.monotonic() + IDENTIFY_INTERVAL_SECONDS
        for name in self.names:
            # A copy, because blocking shards do this in several threads.
            if not had_conflict and name in list(known.names.values()):
                continue
            try:
                identity = yield OnShard(name, partial(_run_plan, plan_identify(), None))
            except Exception as raised:
                # The connection may belong to another shard.
                error = raised
                continue
            # Another call that found the same conflict may have removed the entry meanwhile.
            other = known.names.setdefault(identity, answered.setdefault(identity, name))
            if other != name:
                # Until the shards differ, every call asks them again and raises.
                known.has_conflict = True
                known.names.pop(identity, None)
                raise ConfigurationError(f"shards {other!r} and {name!r} are the same database")
        if had_conflict:
            known.has_conflict = False
        if error is not None and not known.names:
            raise error

    def _add_where_kept(self, spec: JobSpec, client: Any) -> Any:
        """Add a job if the database holds another one with its key or in its queue."""
        raise NotImplementedError

    def _find_by_key(
        self, method: str, job_key: str, shard_key: str | None, conn: object
    ) -> Calls[Job | None]:
        """Call a method with a key, on the shard of the key and on its former one."""
        key = job_key if shard_key is None else shard_key
        # The former shard is usually the same.
        names = list(dict.fromkeys((self._find_former(key), self.find_shard(key))))
        if conn is not None:
            located = yield from self._locate(conn)
            self._check_located(located, names, key)
            names = [located]
        found: Job | None = None
        for name in names:
            job = yield OnShard(name, lambda client: getattr(client, method)(job_key, conn=conn))
            if job is not None and found is None:
                found = _set_shard(job, name)
        return found

    def _call_by_id(self, method: str, job_id: int, shard: str | None, conn: object) -> Calls[Any]:
        if shard is None and conn is None:
            raise _build_shard_missing_error(job_id)
        name = (yield from self._locate(conn)) if shard is None else shard
        return (yield OnShard(name, lambda client: getattr(client, method)(job_id, conn=conn)))

    def _get_job(self, job_id: int, shard: str | None, conn: object) -> Calls[Job | None]:
        job = yield from self._call_by_id("get_job", job_id, shard, conn)
        return job if job is None or shard is None else _set_shard(job, shard)

    def _get_result_client(self, job_id: int, shard: str | None) -> Any:
        if shard is None:
            raise _build_shard_missing_error(job_id)
        return self._get_client(shard)

    def _migrate(self) -> Calls[int]:
        levels: list[int] = []
        for name in self.names:
            levels.append((yield OnShard(name, lambda client: client.migrate())))
        return min(levels)

    def _read_status(self) -> Calls[list[ShardStatus]]:
        found = []
        for name in self.names:
            jobs: ShardJobs = yield OnShard(name, partial(self._count_jobs, name))
            is_draining = name in self.draining
            misplaced = jobs.total if is_draining else jobs.misplaced
            found.append(ShardStatus(name, name in self.new, is_draining, jobs.total, misplaced))
        return found

    def _count_jobs(self, name: str, client: Any) -> Any:
        def is_elsewhere(key: str | None, queue_name: str | None) -> bool:
            return name not in {self.find_shard(each) for each in (key, queue_name) if each}

        return _run_plan(plan_count_shard_jobs(client._schemas, is_elsewhere), None, client)


S = TypeVar("S", bound=BaseShards)


def _run_plan(plan: Plan[Any], conn: object, client: Any) -> Any:
    return client._run_plan(plan, conn)


def _find_kept(spec: JobSpec, conn: object, client: Any) -> Any:
    plan = plan_lock_kept(spec, client._schemas, client._get_local_time())
    return client._run_plan(plan, conn)


def _add_part(specs: list[JobSpec], conn: object, client: Any) -> Any:
    return client.add_jobs(specs, conn=conn)


def _build_shard_missing_error(job_id: int) -> ConfigurationError:
    return ConfigurationError(
        f"each shard has a job {job_id}. Pass shard=job.shard of the job that you added."
    )


def _set_shard(job: Job, name: str) -> Job:
    job._shard = name
    return job


def _check_shards(names: tuple[str, ...]) -> None:
    if not names:
        raise ConfigurationError("no shards. Pass their names and databases.")
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 63:
            raise ConfigurationError(
                f"the name of a shard must be 1 to 63 printable characters, got {name!r}"
            )


def _check_names(argument: str, names: Collection[str], known: tuple[str, ...]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigurationError(f"{argument} must be a list of names, got {names!r}")
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{argument}: no shard is called {name!r}. Shards: {', '.join(map(str, known))}"
            )
    return frozenset(names)
