"""The statements that move locks, two or three at a time, in every order in which they can be.

What must hold is written in interleavings/rules.py, one function for each rule.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from graphile_worker._db.sync import SyncPsycopgConnection
from tests.chaos.interleavings.actions import BY_HAND, STATEMENTS, Action, Answer, Part
from tests.chaos.interleavings.ring import PAIRS, Found, Ring
from tests.chaos.interleavings.rules import Actor
from tests.chaos.interleavings.scenes import SCENES, A, B
from tests.support.shared_folder import made_once
from tests.support.tiers import size

pytestmark = pytest.mark.single_version

IN_FULL = size(gate=False, nightly=True)


# Rules that these do not keep yet.
#
# superseded: whether a held job gave up its key is told from its updated_at being later than its
# locked_at. That of a transaction that began before the job was claimed is earlier.
#
# deadlock: the reference's force_unlock_workers locks jobs and queues in the order of the table, an
# ending in that of their ids. In the middle, each may wait for the other; the ending is sent again.
SUPERSEDED = {"what_was_superseded_stays_so"}
DEADLOCK = {"no_two_wait_for_each_other"}
KNOWN: dict[tuple[str, str], set[str]] = {
    ("claim one", "add"): SUPERSEDED,
    ("claim one", "remove"): SUPERSEDED,
    ("claim many", "add"): SUPERSEDED,
    ("claim many", "remove"): SUPERSEDED,
    ("complete", "force unlock"): DEADLOCK,
    ("fail", "force unlock"): DEADLOCK,
    ("return", "force unlock"): DEADLOCK,
}


@pytest.fixture(scope="module")
def ring(cluster, schema, template) -> Iterator[Ring]:
    """All of it on one database; nightly in all scenes and all orders of beginnings."""
    cluster.create_database("interleavings", template)
    ring = Ring(cluster.dsn("interleavings"), schema, in_full=IN_FULL)
    yield ring
    ring.close()
    cluster.drop_database("interleavings")


@pytest.fixture(scope="session")
def tally(tmp_path_factory) -> Path:
    """A folder for counts that is the same for all processes of a run."""
    return made_once(tmp_path_factory, "interleavings", lambda folder: None)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_statements_keep_the_rules_in_every_order(ring, tally, figure, pair):
    found = Found()
    ring.play_pair(STATEMENTS[pair[0]], STATEMENTS[pair[1]], found, in_full=pair in KNOWN)

    assert found.interleavings
    assert found.broken == KNOWN.get(pair, set()), found.report()
    (tally / "-".join(pair)).write_text(str(found.interleavings))
    counts = [int(each.read_text()) for each in tally.iterdir()]
    if len(counts) == len(PAIRS):
        figure(f"pairs: {len(counts)}/{len(PAIRS)}, interleavings: {sum(counts)}")


# Jobs that the dead pool had started and others, in and without named queues, and a quarantine.
DEAD = [each for each in SCENES if each.is_a_dead]
DEAD_IN_GATE = (
    "dead, started",
    "dead, one of two queues started",
    "dead, another of the queue waits",
    "dead at the last recovery",
)


@pytest.mark.parametrize(
    "scene",
    size(gate=[each for each in DEAD if each.name in DEAD_IN_GATE], nightly=DEAD),
    ids=lambda scene: scene.name,
)
def test_three_statements_keep_the_rules_in_every_order(ring, scene):
    """A late completion of a dead pool, the recovery of its jobs, and the next claim."""
    actors = (
        Actor(STATEMENTS["claim one"][0], B, number=1),
        Actor(STATEMENTS["complete"][0], A, number=2),
        Actor(STATEMENTS["recover"][0], A, number=3),
    )
    found = Found()
    ring.play_triple(scene, actors, found)

    assert found.interleavings
    assert not found.violations, found.report()


# Not what replaces a job or removes it: whichever of two people comes last is right.
BESIDE = ("claim one", "complete", "fail", "return", "recover", "unlock", "force unlock")

# attempts: a job that was locked for more than four hours can be failed by hand, and a sweep of its
# dead pool gives it another attempt all the same.
KNOWN_BY_HAND: dict[str, set[str]] = {
    "complete by hand": set(),
    "fail by hand": {"attempts_count_claims"},
    "reschedule": set(),
}


@pytest.mark.parametrize("action", BY_HAND, ids=lambda action: action.name)
def test_admin_functions_keep_the_rules_beside_each_statement(ring, action):
    found = Found()
    for statement in BESIDE:
        ring.play_beside(STATEMENTS[statement][0], action, found)

    assert found.interleavings
    assert found.broken == KNOWN_BY_HAND[action.name], found.report()


def unfenced(connection: SyncPsycopgConnection, part: Part) -> Answer:
    """A completion that does not ask who holds the job: the mistake that the ring must notice."""
    ids = ",".join(map(str, part.ending))
    schema = part.schemas.shared.replace('"', '""')
    rows = connection.raw.execute(
        f'delete from "{schema}"._private_jobs where id in ({ids}) returning id'.encode()
    )
    return Answer(ended=tuple(row[0] for row in rows))


def test_interleavings_find_a_completion_that_is_not_fenced(ring):
    found = Found()
    mistake = Action("unfenced", unfenced, is_of_pool=True, is_by_id=True, ends=True)
    ring.play_pair(STATEMENTS["claim one"], [mistake], found)

    # The job of another pool is deleted, and its named queue stays locked.
    assert {"strangers_end_nothing", "queues_are_locked_for_their_jobs"} <= found.broken
