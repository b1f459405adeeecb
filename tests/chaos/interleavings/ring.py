"""The ring itself: every cast of a pair, in every scene that concerns it, in every order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from itertools import combinations_with_replacement, product

from graphile_worker._db.sync import SyncPsycopgConnection
from graphile_worker._sql.identifiers import Schemas
from graphile_worker._sql.queries import workers
from tests.chaos.interleavings.actions import MAX_RECOVERIES, STATEMENTS, Action, Answer, Part
from tests.chaos.interleavings.rules import Actor, Case, Told, Violation, violations
from tests.chaos.interleavings.scenes import SCENES, A, B, Scene
from tests.chaos.interleavings.sessions import (
    Act,
    Order,
    Played,
    Stage,
    all_orders,
    one_after_the_other,
    orders,
)
from tests.chaos.interleavings.tables import FIRST_NEW_ID, Tables, read_tables

PAIRS = tuple(combinations_with_replacement(STATEMENTS, 2))


@dataclass
class Found:
    """What a part of the ring has shown."""

    interleavings: int = 0
    waits: int = 0
    violations: list[Violation] = field(default_factory=list)

    def add(self, case: Case) -> None:
        self.interleavings += 1
        self.waits += any("waits" in step for step in case.trace)
        self.violations += violations(case)

    @property
    def broken(self) -> set[str]:
        """The names of the rules that do not hold."""
        return {violation.rule for violation in self.violations}

    def report(self) -> str:
        """One example of each violation, with its schedule."""
        examples = {(each.rule, each.scene, each.actors): each for each in self.violations}
        return "\n".join(["", *map(str, examples.values())])


@dataclass
class Measures:
    """What schedules of the same statements in the same scene are measured by."""

    # One after the other, in each order; and without each of them.
    serial: list[Told] = field(default_factory=list)
    without: list[list[Told]] = field(default_factory=list)
    # Outcomes whose endings have been sent again: the same ones need not be tried twice.
    repeated: set[Told] = field(default_factory=set)


class Ring:
    """One database, on which each schedule starts from the same scene."""

    def __init__(self, dsn: str, schema: str, *, in_full: bool = False) -> None:
        self._in_full = in_full
        self.stage = Stage(dsn, schema, 3)
        self.schemas = Schemas.from_names(schema)
        self._sql = self.stage.watcher
        self._behind = SyncPsycopgConnection(self._sql.connection, self.schemas)
        self._now = f"timestamptz '{self._sql.value('select now()')}'"
        self._scripts: dict[Scene, bytes] = {}
        self._before: dict[Scene, Tables] = {}
        self._rows: dict[tuple[Scene, tuple[Actor, ...]], list[Told]] = {}
        self._skipped: set[Cell] = set() if in_full else set(cells()) - set(gate_cells())
        self.tasks = self._prepare()

    def close(self) -> None:
        self.stage.close()

    def clear(self) -> None:
        """Leave nothing of what was deleted."""
        self._sql.run("truncate :schema._private_jobs, :schema._private_job_queues")

    def play_pair(
        self,
        one: Sequence[Action],
        other: Sequence[Action],
        found: Found,
        *,
        in_full: bool = False,
    ) -> None:
        """Every cast of two statements, with all ways to call them, in each of its scenes.

        If not in full, only in the scenes of `gate_cells`.
        """
        self.clear()
        for actors in casts(one, other):
            for scene in scenes_for(actors):
                if not in_full and (actors, scene) in self._skipped:
                    continue
                self.play_all(scene, actors, self._schedules_of(scene, actors), found)
                self.play_gated(scene, actors, found)

    def play_beside(self, one: Action, other: Action, found: Found) -> None:
        """The same of two statements, each as a whole."""
        self.clear()
        for actors in casts([one], [other]):
            for scene in scenes_for(actors):
                self.play_all(scene, actors, orders(2), found)

    def play_triple(self, scene: Scene, actors: Sequence[Actor], found: Found) -> None:
        """Three statements, in all orders of these and their commits."""
        self.clear()
        self.play_all(scene, actors, orders(3), found)

    def play_all(
        self, scene: Scene, actors: Sequence[Actor], schedules: Sequence[Order], found: Found
    ) -> None:
        """Run each possible schedule; where a session waits, the order of the rest is fixed."""
        serial = one_after_the_other(len(actors))
        measures = self._measures(scene, actors)
        cases = [self._play(scene, actors, order, measures)[0] for order in serial]
        measures.serial = [case.told for case in cases]
        impossible: list[Order] = []
        for order in schedules:
            if order in serial or any(order[: len(prefix)] == prefix for prefix in impossible):
                continue
            case, played = self._play(scene, actors, order, measures)
            if played.impossible_at is None:
                cases.append(case)
            else:
                impossible.append(order[: played.impossible_at + 1])
        for case in cases:
            found.add(case)

    def play_gated(self, scene: Scene, actors: Sequence[Actor], found: Found) -> None:
        """Run both statements until a lock of a third session stops them, then release it."""
        rows = [("_private_jobs", row.id) for row in scene.jobs]
        rows += [("_private_job_queues", queue) for queue in scene.queues]
        if len(rows) < 2 or not can_be_gated(actors):
            return
        for (table, row_id), order in product(rows, GATED):
            text = self._sql.text(f"select from :schema.{table} where id = {row_id} for update")
            found.add(self._play(scene, actors, order, Measures(), gate=text)[0])

    def _schedules_of(self, scene: Scene, actors: Sequence[Actor]) -> Sequence[Order]:
        """All orders; that of beginnings too where one's idea of now is compared with another's."""
        takes = any(actor.action.takes for actor in actors) and any(row.key for row in scene.free)
        supersedes = any(actor.action.supersedes for actor in actors)
        return all_orders(2) if self._in_full or (takes and supersedes) else orders(2)

    def _play(
        self,
        scene: Scene,
        actors: Sequence[Actor],
        order: Order,
        measures: Measures,
        gate: bytes | None = None,
    ) -> tuple[Case, Played]:
        before = self._set(scene)
        acts = self._acts(scene, actors)
        if gate is not None:
            acts.append(partial(_hold, gate))
        played = self.stage.play(order, acts)
        count = len(actors)
        case = Case(
            scene,
            actors,
            before,
            read_tables(self._sql),
            played.answers[:count],
            played.errors[:count],
            measures.serial,
            measures.without,
            trace=played.trace,
        )
        if played.impossible_at is None or gate:
            self._look_further(case, measures)
        return case, played

    def _measures(self, scene: Scene, actors: Sequence[Actor]) -> Measures:
        """What comes of it if one of the statements is not sent; the rest is found on the way."""
        others = [(*actors[:n], *actors[n + 1 :]) for n in range(len(actors))]
        return Measures(without=[self._in_a_row(scene, each) for each in others])

    def _in_a_row(self, scene: Scene, actors: tuple[Actor, ...]) -> list[Told]:
        known = scene, actors
        if known not in self._rows:
            self._rows[known] = [
                self._play(scene, actors, order, Measures())[0].state
                for order in one_after_the_other(len(actors))
            ]
        return self._rows[known]

    def _look_further(self, case: Case, measures: Measures) -> None:
        """See what comes of what has come of it: endings again, and sweeps."""
        if case.told not in measures.repeated:
            measures.repeated.add(case.told)
            case.repeated = self._repeat(case)
        sweepers = [actor for actor in case.actors if actor.action.sweeps]
        if sweepers and measures.serial and case.told not in measures.serial:
            for actor in sweepers:
                actor.action.perform(self._behind, self._part(case.scene, actor))
            case.swept_later = read_tables(self._sql)
        if any(_is_superseded(case, job_id) for job_id in case.after.jobs):
            everybody = workers.recover_jobs(
                [A, B], timedelta(0), MAX_RECOVERIES, is_confirmed_dead=True
            )
            self._behind.run(everybody)
            case.swept = read_tables(self._sql)

    def _repeat(self, case: Case) -> Tables | None:
        """Return the tables after each end was sent again, as by a pool without an answer."""
        endings = [actor for actor in case.actors if actor.action.ends]
        if any(case.errors) or not endings or any(_took_anew(case, actor) for actor in endings):
            return None
        for actor in endings:
            part = self._part(case.scene, replace(actor, again=True))
            actor.action.perform(self._behind, part)
        return read_tables(self._sql)

    def _acts(self, scene: Scene, actors: Sequence[Actor]) -> list[Act]:
        return [partial(_perform, actor.action, self._part(scene, actor)) for actor in actors]

    def _part(self, scene: Scene, actor: Actor) -> Part:
        return Part(scene, actor.pool, self.tasks, self.schemas, actor.number, actor.again)

    def _set(self, scene: Scene) -> Tables:
        """Make it so; what the tables then say, which is always the same."""
        if scene not in self._scripts:
            self._scripts[scene] = self._sql.text(scene.script.replace(":now", self._now))
        self._sql.connection.execute(self._scripts[scene])
        if scene not in self._before:
            self._before[scene] = read_tables(self._sql)
        return self._before[scene]

    def _prepare(self) -> dict[int, str]:
        run = self._sql.run
        run("insert into :schema._private_tasks (identifier) values ('task')")
        run(f"alter sequence :schema.jobs_id_seq1 restart with {FIRST_NEW_ID}")
        for table in ("_private_jobs", "_private_job_queues"):
            # It would be one more session that holds locks.
            run(f"alter table :schema.{table} set (autovacuum_enabled = off)")
        return dict(run("select id, identifier from :schema._private_tasks"))


# The third session holds a row; the others come to it one after the other, then it lets go.
GATED: tuple[Order, ...] = ((2, 2, 0, 1, 0, 1, 2, 0, 1), (2, 2, 0, 1, 1, 0, 2, 1, 0))


def casts(one: Sequence[Action], other: Sequence[Action]) -> Iterator[tuple[Actor, ...]]:
    """Who sends the two statements: two pools, in either role, or one pool twice."""
    pairs = combinations_with_replacement(one, 2) if one == other else product(one, other)
    for first, second in pairs:
        for pools in _pools(first, second):
            again = pools == (A, A) and first == second and first.ends
            yield Actor(first, pools[0], number=1), Actor(second, pools[1], again, number=2)


def _pools(one: Action, other: Action) -> Iterator[tuple[str, str]]:
    if one.is_of_pool and other.is_of_pool:
        yield A, B
        if one != other and (one.ends or other.ends):
            yield B, A
        if one.ends or other.ends:
            yield A, A
    elif one.takes or other.takes:
        yield B, B
    elif one.ends or other.ends:
        yield A, A
        yield B, B
    else:
        yield A, A


def scenes_for(actors: Sequence[Actor]) -> list[Scene]:
    """The scenes in which each of the statements has something to do, or must not."""
    return [scene for scene in SCENES if _is_for(scene, actors)]


def _is_for(scene: Scene, actors: Sequence[Actor]) -> bool:
    actions = [actor.action for actor in actors]
    if not all(action.concerns(scene) for action in actions):
        return False
    if scene.is_a_dead and not any(action.knows_death for action in actions):
        return False
    if scene.is_stale and not any(action.knows_age for action in actions):
        return False
    if all(action.takes for action in actions):
        return bool(scene.free)
    is_of_stranger = any(
        actor.action.ends and all(row.held_by != actor.pool for row in scene.to_end)
        for actor in actors
    )
    return scene.is_for_strangers or not is_of_stranger


# Two actors in a scene.
Cell = tuple[tuple[Actor, ...], Scene]


def cells() -> list[Cell]:
    """All casts of all pairs, in each of their scenes."""
    return [
        (actors, scene)
        for one, other in PAIRS
        for actors in casts(STATEMENTS[one], STATEMENTS[other])
        for scene in scenes_for(actors)
    ]


@cache
def covering_cells() -> tuple[Cell, ...]:
    """A choice with every cast, and with each actor in each of its scenes beside some other."""
    left = {cell: _covers(cell) for cell in cells()}
    missing = set().union(*left.values())
    chosen: list[Cell] = []
    while missing:
        best = max(left, key=lambda cell: len(left[cell] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return tuple(chosen)


def gate_cells() -> list[Cell]:
    """A third of the covering cells of each pair, and always the first of the pair."""
    by_pair: dict[tuple[str, ...], list[Cell]] = {}
    for cell in covering_cells():
        by_pair.setdefault(tuple(actor.action.name for actor in cell[0]), []).append(cell)
    return [cell for cells_of_pair in by_pair.values() for cell in cells_of_pair[::3]]


def _covers(cell: Cell) -> set[tuple[object, ...]]:
    actors, scene = cell
    roles = [(actor.action.name, actor.pool, actor.again) for actor in actors]
    return {tuple(roles), *((role, scene.name) for role in roles)}


def can_be_gated(actors: Sequence[Actor]) -> bool:
    """Skip claims, because they wait for no lock, and two outcomes of one job by one pool."""
    actions = {actor.action for actor in actors}
    if any(action.takes for action in actions):
        return False
    return len(actions) == 1 or not all(action.ends for action in actions)


def _perform(action: Action, part: Part, connection: SyncPsycopgConnection) -> Answer:
    # As on a large table: what is found by id is found by an index, in the order of ids, and what
    # is found by its lock in the order of the table.
    by_index = "off" if action.is_by_id else "on"
    connection.raw.pgconn.exec_(f"set enable_seqscan = {by_index}".encode())
    return action.perform(connection, part)


def _hold(row: bytes, connection: SyncPsycopgConnection) -> None:
    connection.raw.execute(row)


def _took_anew(case: Case, actor: Actor) -> bool:
    return any(actor.pool in case.claims_of(row.id) for row in case.scene.to_end)


def _is_superseded(case: Case, job_id: int) -> bool:
    before, after = case.before.jobs.get(job_id), case.after.jobs[job_id]
    return before is not None and bool(before["key"]) and not after["key"] and after["locked_by"]
