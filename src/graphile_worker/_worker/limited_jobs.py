"""LimitedJobs: starts jobs of tasks with limits, each with a permit of each of its limits."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from graphile_worker._db.database import QueryRunner
from graphile_worker._db.retry import compute_backoff, is_outage, is_temporary
from graphile_worker._lease.lease import Lease
from graphile_worker._sql.queries.claim import ClaimedJob
from graphile_worker._sql.queries.limits import (
    LimitKind,
    RentedSlot,
    create_limit_rows,
    find_newest_limits,
    free_dead_slots,
    get_kind,
    get_rented_slots,
    register_limits,
    return_pool_slots,
    return_slots,
    watch_limits,
)
from graphile_worker._support.cancellation import is_being_cancelled
from graphile_worker._support.error_format import format_error_line
from graphile_worker._support.logs import Logger
from graphile_worker._worker.limit_groups import (
    DEFAULT_TIMINGS,
    Group,
    LimitTimings,
    Start,
    group_tasks,
)
from graphile_worker._worker.limited_claimer import LimitedClaimer
from graphile_worker._worker.permits import (
    Permits,
    Slots,
    Token,
    Tokens,
    build_permits,
)
from graphile_worker._worker.sources.base import (
    MAX_BACKOFF_SECONDS,
    ONCE_POLL_INTERVAL,
    JobSource,
)
from graphile_worker.limits import Limit, check_definitions


class LimitedJobs:
    """Claims jobs of limited tasks for workers without a job, while their limits allow it.

    For each group of tasks with the same limits it first looks whether a job may be ready, then
    gets permits, and claims as many jobs. It asks for all permits without waiting: if one limit has
    none, it gives back those of the others. So no two pools ever wait for each other.
    """

    def __init__(
        self,
        claimer: LimitedClaimer,
        source: JobSource,
        database: QueryRunner,
        lease: Lease,
        logger: Logger,
        limits: Mapping[str, Sequence[Limit]],
        *,
        poll_interval: timedelta,
        once: bool = False,
        timings: LimitTimings = DEFAULT_TIMINGS,
    ) -> None:
        self._claimer = claimer
        self._source = source
        self._db = database
        self._lease = lease
        self._logger = logger
        self._timings = timings
        longest = ONCE_POLL_INTERVAL if once else poll_interval
        self._poll_seconds = min(poll_interval, longest).total_seconds()
        self._once = once
        self._definitions = check_definitions(limits)
        # Registered limits that may lack slots or the row of their rate, after an error.
        self._incomplete: set[str] = set()
        self._permits = {
            name: build_permits(limit, database, lease, timings.permits)
            for name, limit in self._definitions.items()
        }
        self._groups = [
            Group(tasks, permits, claimer.build_fetcher())
            for tasks, permits in group_tasks(limits, self._permits)
        ]
        self._group_of = {task: group for group in self._groups for task in group.tasks}
        # The groups in the order in which they start jobs: first the one whose last start is the
        # longest ago.
        self._turns = list(self._groups)
        self._last_turn = 0
        for group in self._groups:
            group.rivals = [
                each
                for each in self._groups
                if each is not group and not set(each.permits).isdisjoint(group.permits)
            ]
        self._starts: dict[int, Start] = {}
        self._changed = asyncio.Event()
        self._is_stopped = False
        # Workers that wait for the end of the next round, and whether it takes too long.
        self._asking: list[asyncio.Future[None]] = []
        self._is_slow = False
        # Whether a busy pool claims a job for the next worker that ends one.
        self._is_requested = False
        # Whether the last job that started has a limit: both kinds take turns.
        self._was_limited = False
        self._must_search = True
        self._is_searching = False
        self._wakes = 0
        self._search_at = self._poll_at = self._watch_at = 0.0
        self._must_reconcile = False
        self._failures = 0
        # From an error until all that failed has succeeded.
        self.is_failing = False
        # Limits that another version of the app has registered since, about which it warned.
        self._foreign: dict[str, Limit] = {}
        claimer.on_forgotten = self._on_forgotten
        claimer.may_start_limited = lambda: self._is_unfinished
        claimer.get_slot_pool_ids = lambda: {slot.pool_id for slot in self._list_rented()}

    async def register(self) -> None:
        """Write the definitions of the app, before the first job."""
        await self._register(sorted(self._definitions))

    async def _register(self, names: list[str]) -> None:
        if names:
            self._incomplete.update(names)
            await self._db.run(register_limits(self._definitions[name] for name in names))
        if self._incomplete:
            await self._db.run(create_limit_rows(sorted(self._incomplete)))
            self._incomplete.clear()

    # For the pool

    def wake(self) -> None:
        """Search soon, because jobs may be ready."""
        self._must_search = True
        self._wakes += 1
        self._changed.set()

    def watch(self) -> None:
        """Read the limits soon, because one has changed."""
        self._watch_at = 0.0
        self._changed.set()

    def stop(self) -> None:
        """Start no more jobs. `run` releases those that wait, and returns slots as jobs end."""
        self._is_stopped = True
        self._changed.set()
        self._answer_asking()

    async def close(self) -> None:
        """Return all slots, after the last job of this pool was written or released."""
        if self._slots:
            await self._db.run(return_pool_slots(sorted(self._lease.pool_ids)))
            for each in self._slots:
                each.reconcile(set())
                each.returning.clear()

    # For workers

    @property
    def is_turn(self) -> bool:
        """Return whether the next job should be a limited one, if one can start."""
        return not self._was_limited and not self._is_stopped and self._may_start

    def take(self) -> ClaimedJob | None:
        """Return a limited job that starts now, with its permits, or None."""
        if self._is_stopped:
            return None
        for group in self._turns:
            if group.next and (claimed := self._start_next(group)) is not None:
                self._changed.set()
                return claimed
        return None

    async def ask(self) -> ClaimedJob | None:
        """Claim a job for a worker that has none. None if no limited job can start now.

        A statement about limits may wait for a lock. Then the worker waits for a job of any kind,
        as further ones do until the statement ends, and gets what is claimed there.
        """
        if (claimed := self.take()) is not None or self._is_slow:
            return claimed
        asking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append(asking)
        self._changed.set()
        try:
            async with asyncio.timeout(self._timings.max_asking_seconds):
                await asking
        except TimeoutError:
            self._is_slow = True
        finally:
            with suppress(ValueError):
                self._asking.remove(asking)
        return self.take()

    def notice_waiting(self) -> None:
        """Serve a worker that is about to wait for a job of any kind."""
        self._changed.set()

    def request(self) -> None:
        """Claim a job for the next worker that ends its job, if limited jobs may be ready."""
        if self._may_start and not self._is_requested:
            self._is_requested = True
            self._changed.set()

    def record_start(self, claimed: ClaimedJob) -> None:
        """Remember which kind of job started last."""
        self._was_limited = claimed.job.task_identifier in self._group_of

    def end(self, claimed: ClaimedJob) -> None:
        """Free the permits of a job whose task has ended. Its outcome may be written later."""
        start = self._starts.pop(id(claimed), None)
        if start is None:
            return
        group = start.group
        group.running -= 1
        group.record_duration(time.monotonic() - start.started_at, self._timings.mean_weight)
        self._free_permits(start)

    def is_started(self, claimed: ClaimedJob) -> bool:
        """Return whether a job has permits of its limits."""
        return id(claimed) in self._starts

    def has_expired(self, claimed: ClaimedJob) -> bool:
        """Return whether a token of the job has expired since it was taken."""
        start = self._starts.get(id(claimed))
        now = time.monotonic()
        return start is not None and any(
            isinstance(each, Token) and each.expires_at <= now for each in start.permits
        )

    def put_back(self, claimed: ClaimedJob) -> None:
        """Keep a job for another worker, because the one that took it cannot run it."""
        start = self._starts.pop(id(claimed))
        start.group.running -= 1
        start.group.next.appendleft(claimed)
        self._free_permits(start)

    # The background task

    async def run(self) -> None:
        """Claim jobs until stopped, then return all slots as their jobs end."""
        while not self._is_stopped or self._is_holding:
            try:
                await self.step_once()
            except (Exception, asyncio.CancelledError) as error:
                if is_being_cancelled():
                    raise
                pause = compute_backoff(self._failures, MAX_BACKOFF_SECONDS)
                self._failures += 1
                # The next step asks the database, also without a job to claim.
                self._watch_at = 0.0
                self._handle_error(error)
                self._answer_asking()
                await asyncio.sleep(pause)
                continue
            self._failures = 0
            self._report_recovery()
            self._answer_asking()
            await self._wait()

    async def step_once(self) -> None:
        """Claim jobs for workers that need one, after the reads and returns that are due."""
        now = time.monotonic()
        if self._must_reconcile:
            await self._reconcile()
        if now >= self._watch_at:
            await self._watch()
            self._forget_failures(now)
        await self._release_waiting()
        self._return_idle(now)
        await self._return_slots()
        if self._is_stopped or not self._lease.can_claim:
            return
        if now >= self._poll_at:
            self._poll_at = now + self._poll_seconds
            self._must_search = True
        for group in self._groups:
            if now >= group.search_at:
                group.search_at = float("inf")
                self._must_search = True
        if self._must_search and now >= self._search_at and (self._demand or self._once):
            await self._search()
        for group in list(self._turns):
            await self._serve_unless_paused(group)
        await self._return_slots()
        # A busy worker requests it again, if there was no job.
        self._is_requested = False

    async def _search(self) -> None:
        """Find the groups with ready jobs."""
        self._must_search = False
        self._search_at = time.monotonic() + self._timings.min_search_interval_seconds
        for group in self._groups:
            group.search_at = float("inf")
        self._is_searching = True
        try:
            names = await self._claimer.find_ready_tasks()
        except BaseException:
            self._must_search = True
            raise
        finally:
            self._is_searching = False
        for group in self._groups:
            if not group.tasks.isdisjoint(names):
                group.may_have_more = True
            elif not group.may_have_more:
                # There is nothing to try again.
                group.failures = 0

    async def _serve_unless_paused(self, group: Group) -> None:
        """Serve a group. An error delays this group, not the others."""
        self._deliver(group)
        if group.is_paused(time.monotonic()):
            return
        try:
            if await self._serve(group):
                group.failures = 0
        except (Exception, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            group.record_failure()
            self._handle_error(error)

    def _handle_error(self, error: BaseException) -> None:
        """Report an error that is retried. A pool that runs once stops, as after a failed fetch."""
        # An answer may be lost.
        self._must_reconcile = True
        is_first, self.is_failing = not self.is_failing, True
        if not self._source.report_limited_error(error):
            # All workers are busy, so no event reports it. The heartbeat reports an outage.
            is_warning = is_first and not is_outage(error)
            log = self._logger.warning if is_warning else self._logger.debug
            log("claiming limited jobs failed, retrying: %s", format_error_line(error))
        # While jobs run there is time to retry.
        can_retry = is_temporary(error) and bool(self._claimer.claimed_jobs)
        if self._once and not self._is_stopped and not can_retry:
            self._source.fail(error)

    def _forget_failures(self, now: float) -> None:
        """Report no failure of a claim for longer, if no worker needs another claim.

        The database has answered since. The next claim shows whether the cause has gone.
        """
        for group in self._groups:
            if not self._demand and not group.is_paused(now):
                group.failures = 0

    def _report_recovery(self) -> None:
        if self.is_failing and not any(group.failures for group in self._groups):
            self.is_failing = False
            self._logger.info("claiming limited jobs succeeds again")
            self._source.report_limited_recovery()

    async def _serve(self, group: Group) -> bool:
        """Start the jobs of a group that workers can run now, and claim some for the next ones.

        Returns whether the database has answered.
        """
        if not group.has_jobs:
            return False
        workers = self._count_workers_for(group)
        ahead = 0 if self._claimer.has_dynamic_flags else group.count_ahead(self._timings)
        # Not one by one, while jobs are short.
        is_low = 2 * len(group.next) <= ahead
        if not workers and not (ahead and is_low):
            return False
        has_answer = False
        if workers and group.can_acquire(workers, time.monotonic()):
            await self._acquire(group, workers)
            has_answer = True
            self._deliver(group)
        group.record_permits(is_needed=workers > 0)
        workers = self._count_workers_for(group)
        limit = min(workers, group.free_permits) + ahead - len(group.next)
        if limit <= 0 or not group.may_have_more:
            return has_answer
        wakes = self._wakes
        claimed_jobs = await self._claimer.claim_limited(group.fetcher, group.tasks, limit)
        group.next.extend(claimed_jobs)
        self._deliver(group)
        if claimed_jobs and not claimed_jobs[0].is_all_ready:
            return True
        # No other job is ready, unless one was announced meanwhile.
        group.may_have_more = self._wakes > wakes
        if group.fetcher.next_fetch_at is not None:
            group.search_at = group.fetcher.next_fetch_at
        if not claimed_jobs:
            await self._give_back_unused(group)
        return True

    async def _acquire(self, group: Group, count: int) -> None:
        """Get permits of each limit, or none."""
        for position, each in enumerate(group.permits):
            await each.acquire(count)
            count = min(count, each.free_count)
            if not count:
                # Other pools may have use for what is left of these limits. A rival keeps slots,
                # which could be rented by other pools before it asks for them.
                for other in group.permits[:position]:
                    if not (isinstance(other, Slots) and _is_used_by(other, group.rivals)):
                        await other.reduce(0)
                return
        for each in group.permits:
            if isinstance(each, Tokens):
                await each.reduce(count)

    async def _give_back_unused(self, group: Group) -> None:
        """Give back the permits of a group for which no job is claimed."""
        for permits in group.permits:
            claimed = sum(len(each.next) for each in self._groups if permits in each.permits)
            await permits.reduce(claimed)

    def _deliver(self, group: Group) -> None:
        """Start jobs on workers that wait for one."""
        while group.next and self._source.waiting_count:
            claimed = self._start_next(group)
            if claimed is None:
                return
            self._source.deliver(claimed)

    def _start_next(self, group: Group) -> ClaimedJob | None:
        if group.next[0].pool_id != self._lease.pool_id:
            return None
        # Without the right to claim jobs, no group can ask for permits.
        now = time.monotonic()
        if self._lease.can_claim and group.must_yield(now, self._timings.turn_seconds):
            return None
        # Checked last, because each look at the permits drops those that have expired meanwhile.
        if not group.free_permits:
            return None
        claimed = group.next.popleft()
        self._starts[id(claimed)] = Start(claimed, group, group.take_permits())
        group.running += 1
        self._is_requested = False
        self._turns.remove(group)
        self._turns.append(group)
        self._last_turn += 1
        group.turn = self._last_turn
        group.started_at = now
        return claimed

    def _free_permits(self, start: Start) -> None:
        for permits, permit in zip(start.group.permits, start.permits, strict=True):
            # A token is used once.
            if isinstance(permits, Slots) and isinstance(permit, RentedSlot):
                permits.end(permit)
                for group in self._groups:
                    if permits in group.permits:
                        group.blocked_since = None
        self._changed.set()

    def _on_forgotten(self, claimed: ClaimedJob) -> None:
        # The job was released before it started, or its worker was cancelled.
        self.end(claimed)
        if claimed.queue_id is not None or self._once:
            # No notification reports that the next job of the queue is ready. With `once` a pool
            # gets no notification of jobs that the last job added.
            self.wake()

    async def _release_waiting(self) -> None:
        """Release jobs that cannot start here soon, because other pools may run them now."""
        oldest = time.monotonic() - self._timings.max_waiting_seconds
        for group in self._groups:
            late = [
                each
                for each in group.next
                if self._is_stopped
                or each.claimed_at < oldest
                or each.pool_id != self._lease.pool_id
                or each.job.task_identifier in self._claimer.paused_tasks
            ]
            if not late:
                continue
            late_ids = {id(each) for each in late}
            group.next = deque(each for each in group.next if id(each) not in late_ids)
            group.record_late()
            group.may_have_more = True
            try:
                # Before the release, after which another pool may take tokens.
                await self._give_back_unused(group)
            finally:
                for each in late:
                    await self._source.release(each)

    # Slots

    @property
    def _slots(self) -> list[Slots]:
        return [each for each in self._permits.values() if isinstance(each, Slots)]

    def _list_rented(self) -> list[RentedSlot]:
        return [slot for each in self._slots for slot in each.rented]

    @property
    def _is_holding(self) -> bool:
        return bool(self._list_rented()) or any(group.next for group in self._groups)

    def _return_idle(self, now: float) -> None:
        for each in self._slots:
            if self._is_stopped:
                each.return_all()
            else:
                each.return_idle(now)

    async def _return_slots(self) -> None:
        returning = {slot for each in self._slots for slot in each.returning}
        if not returning:
            return
        await self._db.run(return_slots(sorted(returning)))
        for each in self._slots:
            each.returning = [slot for slot in each.returning if slot not in returning]

    async def _reconcile(self) -> None:
        if self._slots:
            rented = await self._db.run(get_rented_slots(sorted(self._lease.pool_ids)))
            for each in self._slots:
                each.reconcile({slot for slot in rented if slot.limit == each.name})
        self._must_reconcile = False

    async def _watch(self) -> None:
        """Read the limits in force, and share slots with pools that have none."""
        self._watch_at = time.monotonic() + self._timings.watch_interval_seconds
        rented = sorted({slot.limit for slot in self._list_rented()})
        limits = await self._db.run(
            watch_limits(sorted(self._permits), sorted(self._lease.pool_ids), rented)
        )
        if not self._is_stopped:
            # A person deleted these rows. A newer version of the app may have written the others.
            await self._register(sorted(self._permits.keys() - {each.name for each in limits}))
        for each in limits:
            permits = self._permits[each.name]
            if isinstance(permits, Slots):
                # A rate limit of this name has no slots, so this pool returns those that it rents.
                permits.set_amount(each.amount if each.kind is LimitKind.CONCURRENCY else 0)
                if each.is_wanted:
                    permits.share()
        await self._compare_definitions({each.name: each.defined for each in limits})
        if self._slots:
            await self._db.run(free_dead_slots())
            await self._reconcile()

    async def _compare_definitions(self, defined: Mapping[str, Limit]) -> None:
        """Register limits that another version of the app defined since, if this pool is newer.

        The workers that started last define a limit. An older one may restart meanwhile.
        """
        foreign = {
            name: limit for name, limit in defined.items() if limit != self._definitions[name]
        }
        newest: list[str] = []
        if foreign and not self._is_stopped:
            query = find_newest_limits(sorted(foreign), sorted(self._lease.pool_ids))
            newest = await self._db.run(query)
        for name, limit in foreign.items():
            if self._foreign.get(name) != limit:
                self._warn_about_definition(limit, self._definitions[name], name in newest)
        self._foreign = foreign
        await self._register(newest)

    def _warn_about_definition(self, limit: Limit, own: Limit, is_newest: bool) -> None:
        if is_newest:
            effect = "this worker started last and registers its own"
        elif get_kind(limit) is get_kind(own):
            effect = "it applies to this worker too"
        else:
            effect = "this worker starts none of its jobs"
        self._logger.warning(
            "limit %r is %s in another version of the app, and %s here: %s",
            own.name,
            limit,
            own,
            effect,
        )

    # Waiting

    @property
    def _demand(self) -> int:
        """Return how many workers could start a limited job now."""
        return self._source.waiting_count + len(self._asking) + self._is_requested

    def _count_workers_for(self, group: Group) -> int:
        """Return how many workers are left for a group, after those before it in turn.

        Otherwise each group would claim a job for the same worker, and its permit would be lost.
        """
        demand = self._demand
        if not demand:
            return 0
        before = self._turns[: self._turns.index(group)]
        return max(0, demand - sum(each.startable_count for each in before))

    @property
    def _may_start(self) -> bool:
        """Return whether a limited job may be ready, and its limits may allow it."""
        if self._is_stopped:
            return False
        now = time.monotonic()
        if self._must_search and now >= self._search_at:
            return True
        return any(group.next or group.can_try(now) for group in self._groups)

    @property
    def _is_unfinished(self) -> bool:
        """Return whether a pool that runs once must go on: jobs may be ready that may start now."""
        if not self._once or self._is_stopped:
            return False
        now, seconds = time.monotonic(), self._timings.once_wait_seconds
        if self._must_search or self._is_searching:
            return True
        return any(each.may_start_within(seconds, now) for each in self._groups)

    def _answer_asking(self) -> None:
        self._is_slow = False
        answered, self._asking = self._asking, []
        for asking in answered:
            if not asking.done():
                asking.set_result(None)

    async def _wait(self) -> None:
        """Wait for a change, or until the next step is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._compute_next_step() - time.monotonic())):
                await self._changed.wait()
        self._changed.clear()

    def _compute_next_step(self) -> float:
        timings = self._timings
        times = [self._watch_at]
        if not self._is_stopped:
            times.append(max(self._search_at, self._poll_at))
            if self._must_search and (self._demand or self._once):
                times.append(self._search_at)
            for group in self._groups:
                times.append(group.search_at)
                if group.next:
                    times.append(group.next[0].claimed_at + timings.max_waiting_seconds)
                if group.may_have_more and self._count_workers_for(group):
                    times.append(group.retry_at)
        idle = [since for each in self._slots if (since := each.idle_since) is not None]
        times += [since + timings.permits.idle_slot_seconds for since in idle]
        # Never at once, so that a time in the past cannot keep the loop busy.
        shortest = 0.001 if self._lease.can_claim else timings.min_search_interval_seconds
        return max(min(times), time.monotonic() + shortest)


def _is_used_by(permits: Permits, groups: Iterable[Group]) -> bool:
    return any(permits in each.permits and each.has_jobs for each in groups)
