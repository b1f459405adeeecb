"""What waits between a connection that hears and whoever asks: bounded, and no channel starves."""

from graphile_worker.db.listening import MOST_WAITING, Notification, _Heard


def added(number: int) -> Notification:
    return Notification("jobs:insert", str(number))


async def test_a_flood_of_one_channel_fills_no_memory_and_hides_no_other():
    heard = _Heard()
    for number in range(10 * MOST_WAITING):
        heard.put(added(number))
    heard.put(Notification("worker:migrate", "late"))

    told = [await heard.next(0) for _ in range(MOST_WAITING + 1)]

    assert told[:-1] == [added(number) for number in range(MOST_WAITING)]
    assert told[-1] == Notification("worker:migrate", "late")
    assert await heard.next(0) is None


async def test_what_comes_after_a_flood_is_heard():
    heard = _Heard()
    for number in range(2 * MOST_WAITING):
        heard.put(added(number))
    while await heard.next(0) is not None:
        pass

    heard.put(added(7))

    assert await heard.next(0) == added(7)
