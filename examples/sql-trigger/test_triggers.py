"""What the triggers add, and when they do not."""

from tasks import draw_cover, drop_from_index, index_document, send_welcome, sync_to_crm


def add_user(conn):
    [user_id] = conn.execute(
        "insert into users (email) values ('ada@example.com') returning id"
    ).fetchone()
    return user_id


def add_document(conn):
    [document_id] = conn.execute(
        "insert into documents (title) values ('Tea') returning id"
    ).fetchone()
    return document_id


def test_a_new_user_is_welcomed(conn, gw):
    add_user(conn)

    gw.assert_enqueued(send_welcome, email="ada@example.com")


def test_each_change_of_a_user_says_what_it_was(conn, gw):
    user_id = add_user(conn)
    conn.execute("update users set verified = true where id = %s", [user_id])
    conn.execute("delete from users where id = %s", [user_id])

    payloads = [job.payload for job in gw.enqueued(sync_to_crm)]
    assert [payload["op"] for payload in payloads] == ["INSERT", "UPDATE", "DELETE"]
    assert {payload["id"] for payload in payloads} == {user_id}
    assert {(payload["schema"], payload["table"]) for payload in payloads} == {("public", "users")}
    gw.drain()


def test_a_cover_is_drawn_for_a_new_title_alone(conn, gw):
    document_id = add_document(conn)
    conn.execute("update documents set body = 'Drink it hot.' where id = %s", [document_id])
    assert len(gw.enqueued(draw_cover, id=document_id)) == 1

    conn.execute("update documents set title = 'Green tea' where id = %s", [document_id])
    assert len(gw.enqueued(draw_cover, id=document_id)) == 2


def test_a_document_that_is_saved_often_is_indexed_once(conn, gw):
    document_id = add_document(conn)
    for body in ("Drink", "Drink it", "Drink it hot."):
        conn.execute("update documents set body = %s where id = %s", [body, document_id])

    job = gw.assert_enqueued(index_document, id=document_id)
    assert len(gw.enqueued(index_document)) == 1
    assert job.revision == 3


def test_a_deleted_document_leaves_the_index(conn, gw):
    document_id = add_document(conn)
    conn.execute("delete from documents where id = %s", [document_id])

    gw.assert_enqueued(drop_from_index, id=document_id)
    gw.drain(include_delayed=True)  # the other jobs find no row and succeed


def test_a_change_that_is_rolled_back_adds_nothing(conn, gw):
    with conn.transaction(force_rollback=True):
        add_user(conn)

    gw.assert_not_enqueued()
