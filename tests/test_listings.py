"""The two listings: order, paging, filters, cursors, long answers, and what they cost."""

import json
import time
import tracemalloc
from itertools import chain, count
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import STARTS, execute, fill, is_sqlite, new_row
from serving import PROFILES, SESSIONS, Person, assert_error, at_once, named, walk
from werkzeug.test import EnvironBuilder

from database import connection, transaction
from errors import ServiceError
from listings import BATCH
from models import Profile, Session, timestamp
from operations import create_profile, list_profiles, list_sessions
from tables import db

PATHS = {Profile: PROFILES, Session: SESSIONS}
OPERATIONS = {Profile: list_profiles, Session: list_sessions}
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
both = pytest.mark.parametrize("model", [Profile, Session])


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their public ids, newest first."""
    return ids(model, fill(model, appid, count, **options))


@pytest.fixture
def listed(app, model):
    """Thirty rows of an application of their own: their public ids, and who may read them."""
    person = Person(app, administrator=True)
    own = [person.session["sessionid"]] if model is Session else []
    with transaction():  # it becomes the oldest one
        Session.update(id=next(STARTS)).where(Session.appid == person.appid).execute()
    return SimpleNamespace(person=person, ids=[*fill_ids(model, person.appid, 30), *own])


@both
def test_newest_first_a_page_at_a_time(model, listed):
    made = listed.ids
    for query, expected in [
        ("", made[:10]),
        ("limit=3", made[:3]),
        ("limit=3&offset=4", made[4:7]),
        ("offset=25", made[25:]),
        ("offset=25&limit=5", made[25:30]),
        ("limit=&offset=", made[:10]),
        ("limit=030", made[:30]),
        (f"limit={'0' * 5000}3", made[:3]),
        ("limit=9223372036854775807", made),
        ("all=true", made),
        ("all=false", made),
        ("all=1&limit=x&offset=-1", made),
        ("all=", made[:10]),
        (f"after={made[4]}", made[5:15]),
        (f"after={made[4]}&limit=2&offset=3", made[8:10]),
        (f"after={made[4]}&all=1", made[5:]),
    ]:
        assert ids(model, listed.person.get(f"{PATHS[model]}?{query}").json) == expected, query
    last = f"after={made[-1]}"
    for query in ("offset=31", f"offset={2**63 - 1}", "limit=0", "accountid=acct_x", last):
        response = listed.person.get(f"{PATHS[model]}?{query}")
        assert (response.status_code, response.data) == (200, b"null\n"), query
        assert "Link" not in response.headers


@both
def test_links_lead_through_everything_once_while_rows_are_added(model, listed):
    made = listed.ids
    for limit in (1, 7, 10, 15, 29, 30, 31):
        pages, added = [], []
        for page in walk(listed.person, f"{PATHS[model]}?limit={limit}"):
            added = added or fill_ids(model, listed.person.appid, 3)
            pages.append(ids(model, page))
        assert [*chain.from_iterable(pages)] == made
        assert {len(page) for page in pages[:-1]} <= {limit}
        made = added + made


@both
def test_refused_queries(administrator, model):
    for query, code in [
        *((f"limit={text}", "invalid-limit") for text in ("-1", "x", "1.0", "٣", "+1", "1e3", " ")),
        *((f"offset={text}", "invalid-offset") for text in ("-1", "x", "0x1", "１", "1 ")),
        (f"limit={2**63}", "invalid-limit"),
        (f"offset={2**63}", "invalid-offset"),
        ("limit=" + "9" * 5000, "invalid-limit"),
        ("limit=x&offset=x&after=x", "invalid-limit"),
        ("after=x", "invalid-after"),
        ("after=prof_0123456789abcdef", "invalid-after"),
        ("after=sess_0123456789abcdef", "invalid-after"),
        ("after=sess_0123456789abcdef&all=1", "invalid-after"),
        ("after=sess_0123456789abcdef&limit=0", "invalid-after"),
        ("after=acct_0123456789abcdef", "invalid-after"),
    ]:
        assert_error(administrator.get(f"{PATHS[model]}?{query}"), 400, code)


def test_arguments_in_process(app):
    for query, code in [
        *(({"limit": value}, "invalid-limit") for value in (-1, 1.5, True, [], 2**63)),
        *(({"offset": value}, "invalid-offset") for value in (-1, "x", {})),
        *(({"after": value}, "invalid-after") for value in (5, [], "x")),
        *(({"accountid": value}, "invalid-accountid") for value in (5, [], b"acct_x")),
    ]:
        with pytest.raises(ServiceError, match=f"^{code}$"):
            list_profiles(ADMINISTRATOR, **query)
    made = fill_ids(Profile, app.config["SETTINGS"].appid, 11)
    for query in ({"all": False}, {"all": 0}, {"all": ""}, {"all": None}, {}):
        assert ids(Profile, list_profiles(ADMINISTRATOR, **query)) == made[:10], query


@both
def test_filter_by_account(administrator, model):
    mine = fill_ids(model, administrator.appid, 25, accountid="acct_00000000000000aa")
    fill(model, administrator.appid, 25, accountid="acct_00000000000000bb")
    fill(model, "another", 5, accountid="acct_00000000000000aa")
    path = f"{PATHS[model]}?accountid=acct_00000000000000aa"
    pages = [ids(model, page) for page in walk(administrator, path)]
    assert pages == [mine[:10], mine[10:20], mine[20:]]
    assert ids(model, administrator.get(f"{path}&all=1").json) == mine
    assert ids(model, administrator.get(f"{path}&offset=20&limit=2").json) == mine[20:22]
    assert administrator.get(f"{PATHS[model]}?accountid=acct_00000000000000cc").json is None


def test_the_link_is_relative_and_keeps_the_query(user, administrator):
    made = [user.create(named(name)).json for name in "abc"]
    query = f"accountid={user.accountid}&limit=2"
    response = administrator.get(f"{PROFILES}?{query}&offset=0")
    link = f"/api/administrator/profiles?{query}&after={made[1]['profileid']}"
    assert response.headers["Link"] == f'<{link}>; rel="next"'
    assert response.json == made[:0:-1]


def test_two_applications_share_no_row(app, make_app):
    other = make_app()
    mine, theirs = Person(app, administrator=True), Person(other, administrator=True)
    with other.app_context():
        foreign = create_profile(theirs.account, theirs.accountid, named("theirs"))
    cursors = {PROFILES: foreign["profileid"], SESSIONS: theirs.session["sessionid"]}
    for path, cursor in cursors.items():
        assert all(row["appid"] == mine.appid for row in mine.get(path).json or [])
        assert mine.get(f"{path}?accountid={theirs.accountid}").json is None
        assert_error(mine.get(f"{path}?after={cursor}"), 400, "invalid-after")
    with pytest.raises(ServiceError, match="^invalid-after$"):
        list_profiles(mine.account, after=foreign["profileid"])


# Long answers


@both
def test_all_in_batches(administrator, model):
    made = fill_ids(model, administrator.appid, 2 * BATCH + 60)
    own = fill_ids(model, administrator.appid, 2 * BATCH + 60, accountid="acct_00000000000000aa")
    for size in (BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 2 * BATCH + 1):
        for query in ({"all": True}, {"limit": size}):
            rows = OPERATIONS[model](ADMINISTRATOR, after=made[-size - 1], **query)
            assert ids(model, rows) == made[-size:]
    for size in (BATCH + 20, 2 * BATCH):
        path = f"{PATHS[model]}?accountid=acct_00000000000000aa&limit={size}"
        pages = [ids(model, page) for page in walk(administrator, path)]
        assert pages == [own[at : at + size] for at in range(0, len(own), size)]


def test_a_long_page_is_the_same_whatever_is_added_or_purged(administrator):
    made = fill_ids(Session, administrator.appid, 3 * BATCH, accountid="acct_00000000000000aa")
    path = f"{SESSIONS}?accountid=acct_00000000000000aa&limit={2 * BATCH + 1}"
    response = administrator.get(path)
    chunks = response.iter_encoded()
    first = next(chunks)
    fill(Session, administrator.appid, 5, accountid="acct_00000000000000aa")
    with transaction():
        Session.delete().where(Session.sessionid << made[BATCH : BATCH + 50]).execute()
    seen = ids(Session, json.loads(first + b"".join(chunks)))
    assert seen == [*made[:BATCH], *made[BATCH + 50 : 2 * BATCH + 1]]
    assert f"after={made[2 * BATCH]}>" in response.headers["Link"]


@pytest.fixture
def statements(app):
    """The statements that the database was given since the list was last cleared."""
    ran = []
    db.query_hooks.append(ran.append)
    return ran


@pytest.fixture(params=range(1, 7))
def committed(request, administrator):
    """350 rows: their public ids. 25 between the 205th and the 305th are committed during the test.

    That is done over another connection, after the first, the second ... statement of the test.
    """
    made = fill_ids(Profile, administrator.appid, 350)
    with connection():
        own = Profile.select(Profile.id).where(Profile.appid == administrator.appid)
        moments = [moment for (moment,) in own.order_by(Profile.id.desc()).tuples()]
    appid, numbers = administrator.appid, count(1)
    late = [new_row(Profile, each + 1, appid, "acct_x") for each in moments[205:305:4]]

    def hook(event):
        if next(numbers) == request.param:
            at_once(transaction()(Profile.insert_many(late).execute))

    db.query_hooks.append(hook)
    return made


def test_a_walk_loses_no_row_to_those_committed_meanwhile(administrator, committed):
    pages = walk(administrator, f"{PROFILES}?limit=300")
    seen = ids(Profile, chain.from_iterable(pages))
    assert [each for each in seen if each in committed] == committed
    assert len(seen) == len(set(seen))
    assert len(administrator.profiles()) == 375


def test_a_page_in_process_is_never_longer_than_its_limit(committed):
    """It has the newest rows, with those committed meanwhile or without them."""
    page = ids(Profile, list_profiles(ADMINISTRATOR, limit=300))
    everything = ids(Profile, list_profiles(ADMINISTRATOR, all=True))
    assert page in (committed[:300], everything[:300])


def test_a_long_answer_that_breaks_is_cut_short_and_the_log_says_why(
    empty_database_url, make_app, caplog
):
    app = make_app(DATABASE_URL=empty_database_url)
    person = Person(app, administrator=True)
    fill(Profile, person.appid, 3 * BATCH)
    breaks = {"DROP TABLE profile": "database-unavailable"}
    if is_sqlite(empty_database_url):  # which stores what is no text, and has no JSON
        blob = "UPDATE profile SET phone = x'ff' WHERE id = (SELECT min(id) FROM profile)"
        breaks = {blob: "internal-error", **breaks}
    for statement, code in breaks.items():
        environ = EnvironBuilder(f"{PROFILES}?all=all", headers=person.headers).get_environ()
        chunks = iter(app(environ, lambda *args: None))
        assert next(chunks).startswith(b"[{")
        execute(empty_database_url, statement)
        with pytest.raises((ServiceError, TypeError)):
            list(chunks)
        chunks.close()
        assert environ["profiles.code"] == code
    assert "database unavailable: " in caplog.text


@both
def test_memory_does_not_grow_with_the_answer(app, model):
    """Four times the rows take no more at their peak: the client reads them as they come."""
    peaks = []
    for batches in (3, 12):
        appid = "memory-" + token_hex(4)
        fill(model, appid, batches * BATCH)
        person = Person(app, administrator=True, appid=appid)
        response = person.get(f"{PATHS[model]}?all=1")
        tracemalloc.start()
        rows = [chunk.count(b'"updatedAt"') for chunk in response.iter_encoded()]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (sum(rows), max(rows)) == (batches * BATCH + (model is Session), BATCH)
    assert peaks[1] < 1.2 * peaks[0]


# Objects


def test_profiles_keep_their_order_whatever_the_clock_does(app, user, monkeypatch):
    """It stands still and turns back."""
    now, made = time.time_ns(), []
    for clock in (now, now, now - 10**9):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        made.append(user.create(named("name")).json)
    assert list_profiles(ADMINISTRATOR) == made[::-1]
    moments = [row["createdAt"] for row in made]
    assert moments == sorted(moments)


def test_timestamps():
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_700_000_000_999_999_999) == "2023-11-14T22:13:20.999Z"


def test_many_threads_without_a_context_write_at_once(app, user):
    def make():
        for number in range(5):
            create_profile(user.account, user.accountid, named(f"n{number}"))

    assert user.account
    at_once(*[make] * 8)
    rows = list_profiles(ADMINISTRATOR, all=True)
    assert len({row["profileid"] for row in rows}) == 40
    moments = [row["createdAt"] for row in rows]
    assert moments == sorted(moments, reverse=True)


# What they cost


def test_statements_of_each_request(user, administrator, statements):
    form = named("a")
    made = user.create(form).json
    assert len(statements) <= 2
    statements.clear()
    newest = user.create({**form, "default": "true"}).json["profileid"]
    assert len(statements) <= 3
    statements.clear()
    user.update(made["profileid"], form)
    assert len(statements) <= 3
    for path, cursor in {PROFILES: newest, SESSIONS: administrator.session["sessionid"]}.items():
        for query in ("", "limit=1", "offset=1", f"after={cursor}", "all=1", "limit=1&offset=1"):
            statements.clear()
            assert administrator.get(f"{path}?{query}").json is not None
            assert len(statements) <= 2, query


@both
def test_plans_read_one_range_of_one_index(app, statements, model):
    """The range is on the full key of the index, and nothing is sorted."""
    appid, account = "plan-" + token_hex(4), {"accountid": "acct_00000000000000aa"}
    made = fill_ids(model, appid, 600, **account)  # enough for an index to be worth it
    cursor = {"after": made[300]}  # in the middle: both ends are far
    for query in ({}, account, cursor, account | cursor):
        for offset in (0, 5):
            statements.clear()
            rows = OPERATIONS[model](ADMINISTRATOR, appid=appid, limit=10, offset=offset, **query)
            start = 301 * ("after" in query) + offset
            assert ids(model, rows) == made[start : start + 10]
            (event,) = statements
            scope = ["appid", "accountid"] if "accountid" in query else ["appid"]
            index = "_".join([model._meta.table_name, *scope, "id"])
            check = check_sqlite_plan if db.kind == "sqlite" else check_mysql_plan
            check(event, index, scope)


def check_sqlite_plan(event, index, scope):
    with connection():
        plan = db.execute_sql("EXPLAIN QUERY PLAN " + event.sql, event.params)
        steps = [row[3] for row in plan.fetchall()]
    wanted = " AND ".join([*(f"{name}=?" for name in scope), "id<?"])
    assert any(f"INDEX {index} (" in step and wanted in step for step in steps), steps
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN") for step in steps), steps


def check_mysql_plan(event, index, scope):
    """Columns are read by name, since MySQL has two more of them than MariaDB."""
    with connection():
        plan = db.execute_sql("EXPLAIN FORMAT=TRADITIONAL " + event.sql, event.params)
        names = [column[0] for column in plan.description]
        steps = [dict(zip(names, row, strict=True)) for row in plan.fetchall()]
    reads = [(step["type"], step["key_len"]) for step in steps if step["key"] == index]
    length = len(scope) * (64 + 2) + 8  # ASCII characters and their number; an id
    assert reads == [("range", str(length))], steps
    assert not any("filesort" in (step["Extra"] or "") for step in steps), steps
