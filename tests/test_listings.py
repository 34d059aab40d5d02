"""The two listings: order, paging, filters, cursors, long answers, and what they cost."""

import itertools
import re
import tracemalloc
from itertools import chain
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import STARTS, execute, fill, new_row
from serving import PROFILES, SESSIONS, Person, assert_error, at_once, named, walk

import listings
import models
import operations
from database import connection, db
from errors import ServiceError
from listings import BATCH
from models import Profile, Session, timestamp
from operations import create_profile, list_profiles, list_sessions

PATHS = {Profile: PROFILES, Session: SESSIONS}
OPERATIONS = {Profile: list_profiles, Session: list_sessions}
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
EARLIEST = itertools.count(1)
both = pytest.mark.parametrize("model", [Profile, Session])


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their public ids, newest first."""
    return ids(model, fill(model, appid, count, **options))


@pytest.fixture
def made(app, model):
    """Thirty rows of an application of their own, which only these tests read."""
    appid = app.config["SETTINGS"].appid
    return SimpleNamespace(appid=appid, ids=fill_ids(model, appid, 30))


@both
def test_newest_first_a_page_at_a_time(app, model, made):
    person = listing_person(app, model, made)
    assert ids(model, person.get(PATHS[model]).json) == made.ids[:10]
    for query, expected in [
        ("limit=3", made.ids[:3]),
        ("limit=3&offset=4", made.ids[4:7]),
        ("offset=25", made.ids[25:]),
        ("offset=25&limit=5", made.ids[25:30]),
        ("limit=&offset=", made.ids[:10]),
        ("limit=030", made.ids[:30]),
        (f"limit={'0' * 5000}3", made.ids[:3]),
        ("limit=9223372036854775807", made.ids),
        ("all=true", made.ids),
        ("all=false", made.ids),
        ("all=1&limit=x&offset=-1", made.ids),
        ("all=", made.ids[:10]),
        (f"after={made.ids[4]}", made.ids[5:15]),
        (f"after={made.ids[4]}&limit=2&offset=3", made.ids[8:10]),
        (f"after={made.ids[4]}&all=1", made.ids[5:]),
    ]:
        assert ids(model, person.get(f"{PATHS[model]}?{query}").json) == expected, query


def listing_person(app, model, made):
    """An administrator, whose own session becomes the oldest one and the last of ``made.ids``."""
    person = Person(app, administrator=True)
    if model is Session:
        earliest = next(EARLIEST)
        with connection():
            Session.update(id=earliest, createdAt=timestamp(earliest)).where(
                Session.sessionid == person.session["sessionid"]
            ).execute()
        made.ids.append(person.session["sessionid"])
    return person


@both
@pytest.mark.parametrize(
    "query", ["offset=31", "offset=9223372036854775807", "limit=0", "accountid=acct_x"]
)
def test_nothing_is_null(app, model, made, query):
    person = listing_person(app, model, made)
    response = person.get(f"{PATHS[model]}?{query}")
    assert (response.status_code, response.data) == (200, b"null")
    assert "Link" not in response.headers


@both
@pytest.mark.parametrize(
    ("query", "code"),
    [
        *((f"limit={text}", "invalid-limit") for text in ("-1", "x", "1.0", "٣", "+1", "1e3", " ")),
        *((f"offset={text}", "invalid-offset") for text in ("-1", "x", "0x1", "１", "1 ")),
        ("limit=9223372036854775808", "invalid-limit"),
        ("offset=9223372036854775808", "invalid-offset"),
        ("limit=" + "9" * 5000, "invalid-limit"),
        ("limit=x&offset=x&after=x", "invalid-limit"),
        ("after=x", "invalid-after"),
        ("after=prof_0123456789abcdef", "invalid-after"),
        ("after=sess_0123456789abcdef", "invalid-after"),
        ("after=sess_0123456789abcdef&all=1", "invalid-after"),
        ("after=acct_0123456789abcdef", "invalid-after"),
    ],
)
def test_refused_queries(administrator, model, query, code):
    assert_error(administrator.get(f"{PATHS[model]}?{query}"), 400, code)


@both
def test_filter_by_account(app, model):
    appid = app.config["SETTINGS"].appid
    mine = fill_ids(model, appid, 25, accountid="acct_00000000000000aa")
    fill(model, appid, 25, accountid="acct_00000000000000bb")
    fill(model, "another", 5, accountid="acct_00000000000000aa")
    person = Person(app, administrator=True)
    path = f"{PATHS[model]}?accountid=acct_00000000000000aa"
    assert [ids(model, page) for page in walk(person, path)] == [mine[:10], mine[10:20], mine[20:]]
    assert ids(model, person.get(f"{path}&all=1").json) == mine
    assert ids(model, person.get(f"{path}&offset=20&limit=2").json) == mine[20:22]
    assert person.get(f"{PATHS[model]}?accountid=acct_00000000000000cc").json is None


@both
@pytest.mark.parametrize("limit", [1, 7, 10, 15, 29, 30, 31])
def test_links_lead_through_everything_once(app, model, made, limit):
    person = listing_person(app, model, made)
    total = len(made.ids)
    pages = list(walk(person, f"{PATHS[model]}?limit={limit}"))
    assert [row_id for page in pages for row_id in ids(model, page)] == made.ids
    assert [len(page) for page in pages[:-1]] == [limit] * ((total - 1) // limit)


def test_the_link_is_relative_and_keeps_the_query(app, user, administrator):
    made = [create_profile(user.account, user.accountid, named(f"n{n}")) for n in range(3)]
    path = f"/api/administrator/profiles?accountid={user.accountid}&limit=2&offset=0"
    response = administrator.get(path)
    assert response.headers["Link"] == (
        f"</api/administrator/profiles?accountid={user.accountid}&limit=2"
        f'&after={made[1]["profileid"]}>; rel="next"'
    )
    assert response.json == made[:0:-1]


def test_paging_while_rows_are_added(app, user, administrator):
    made = [create_profile(user.account, user.accountid, named(f"n{n}")) for n in range(6)]
    seen = []
    for page in walk(administrator, f"{PROFILES}?limit=2"):
        seen += page
        create_profile(user.account, user.accountid, named("late"))
    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        *(({"limit": value}, "invalid-limit") for value in (-1, 1.5, True, [], 2**63)),
        *(({"offset": value}, "invalid-offset") for value in (-1, "x", {})),
        *(({"after": value}, "invalid-after") for value in (5, [], "x")),
        *(({"accountid": value}, "invalid-accountid") for value in (5, [], b"acct_x")),
    ],
)
def test_refused_in_process(app, query, code):
    with pytest.raises(ServiceError, match=f"^{code}$"):
        list_profiles(ADMINISTRATOR, **query)


@pytest.mark.parametrize("query", [{"all": False}, {"all": 0}, {"all": ""}, {"all": None}, {}])
def test_a_page_unless_all_in_process(app, query):
    made = fill_ids(Profile, app.config["SETTINGS"].appid, 11)
    assert ids(Profile, list_profiles(ADMINISTRATOR, **query)) == made[:10]


# Long answers


@both
@pytest.mark.parametrize("count", [BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 2 * BATCH + 1])
def test_all_in_batches(app, model, count):
    appid = "listed-" + token_hex(4)
    made = fill_ids(model, appid, count)
    for query in ({"all": True}, {"limit": count}):
        assert ids(model, OPERATIONS[model](ADMINISTRATOR, appid=appid, **query)) == made


@both
def test_long_pages_link_to_the_next(app, model):
    appid = app.config["SETTINGS"].appid
    made = fill_ids(model, appid, 2 * BATCH + 60, accountid="acct_00000000000000aa")
    person = Person(app, administrator=True)
    path = f"{PATHS[model]}?accountid=acct_00000000000000aa&limit={BATCH + 20}"
    pages = [ids(model, page) for page in walk(person, path)]
    assert pages == [made[: BATCH + 20], made[BATCH + 20 : 2 * BATCH + 40], made[2 * BATCH + 40 :]]


def test_a_long_page_is_the_same_whatever_is_added_or_purged(app):
    appid = app.config["SETTINGS"].appid
    made = fill_ids(Session, appid, 3 * BATCH)
    query = {"limit": 2 * BATCH + 1}
    page = operations.list_page(Session, ADMINISTRATOR, appid, query)
    newer = fill_ids(Session, appid, 5)
    with connection():
        Session.delete().where(Session.sessionid << made[BATCH : BATCH + 50]).execute()
    seen = ids(Session, [*page.first, *chain.from_iterable(page.rest)])
    assert seen == [*made[:BATCH], *made[BATCH + 50 : 2 * BATCH + 1]]
    assert page.next == made[2 * BATCH]
    assert ids(Session, list_sessions(ADMINISTRATOR, limit=5, appid=appid)) == newer


@pytest.mark.parametrize("made", ["long ago", "just now"])
def test_a_row_committed_late_makes_a_page_no_longer(app, made):
    """And takes the place of no other, unless its commit took very long."""
    appid = app.config["SETTINGS"].appid
    first = models.now() - 10**9 if made == "just now" else next(STARTS)
    rows = [new_row(Profile, first + 1000 * n, appid, "acct_x") for n in range(3 * BATCH)]
    late = new_row(Profile, first + 1000 * BATCH + 1, appid, "acct_x")
    with connection(), db.atomic():
        Profile.insert_many(rows).execute()
    expected = [row[Profile.profileid] for row in reversed(rows)]
    page = operations.list_page(Profile, ADMINISTRATOR, appid, {"limit": 2 * BATCH + 50})
    with connection():
        Profile.insert(late).execute()
    seen = ids(Profile, [*page.first, *chain.from_iterable(page.rest)])
    assert len(seen) == 2 * BATCH + 50
    assert page.next == expected[2 * BATCH + 49]
    if made == "just now":
        assert seen == expected[: 2 * BATCH + 50]


def test_rows_committed_late_while_the_end_of_a_page_is_looked_up(app, monkeypatch):
    """They are above that end, so the cursor still names the last row of the page."""
    appid, read_rows, first = app.config["SETTINGS"].appid, listings.read_rows, next(STARTS)
    rows = [new_row(Profile, first + 1000 * n, appid, "acct_x") for n in range(3 * BATCH)]
    late = [new_row(Profile, row[Profile.id] - 1, appid, "acct_x") for row in rows[-2:]]
    with connection(), db.atomic():
        Profile.insert_many(rows).execute()
    expected = [row[Profile.profileid] for row in reversed(rows)]

    def read_rows_and_commit(*args, **kwargs):
        found = read_rows(*args, **kwargs)
        while late:
            Profile.insert(late.pop()).execute()
        return found

    monkeypatch.setattr(listings, "read_rows", read_rows_and_commit)
    page = operations.list_page(Profile, ADMINISTRATOR, appid, {"limit": BATCH + 1})
    seen = ids(Profile, [*page.first, *chain.from_iterable(page.rest)])
    assert seen == expected[: BATCH + 1]
    assert page.next == expected[BATCH]


def test_a_long_answer_is_sent_as_it_is_read(app, administrator):
    fill(Profile, administrator.appid, 3 * BATCH)
    response = administrator.get(f"{PROFILES}?all=1")
    assert response.is_streamed
    chunks = list(response.iter_encoded())
    assert len(chunks) == 4
    assert b"".join(chunks).count(b'"profileid"') == 3 * BATCH


def test_a_long_answer_that_breaks_is_cut_short_and_the_log_says_why(
    empty_database_url, make_app, caplog
):
    person = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    fill(Profile, person.appid, 3 * BATCH)
    chunks = person.get(f"{PROFILES}?all=all").iter_encoded()
    assert next(chunks).startswith(b"[{")
    execute(empty_database_url, "DROP TABLE profile")
    with pytest.raises(ServiceError, match="^database-unavailable$"):
        list(chunks)
    assert "database unavailable: " in caplog.text


@both
def test_memory_does_not_grow_with_the_answer(app, model):
    """Ten times the rows take no more at their peak: the client reads them as they come."""
    peaks = []
    for count in (4 * BATCH, 40 * BATCH):
        appid = "memory-" + token_hex(4)
        fill(model, appid, count)
        person = Person(app, administrator=True, appid=appid)
        response = person.get(f"{PATHS[model]}?all=1")
        tracemalloc.start()
        rows = sum(chunk.count(b'"updatedAt"') for chunk in response.iter_encoded())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert rows == count + (model is Session)
    assert peaks[1] < 1.2 * peaks[0]


# Objects


def test_a_session_as_it_is_listed(administrator):
    made = dict(administrator.session)
    del made["token"]
    assert administrator.get(SESSIONS).json == [made]
    assert list(made) == [
        *("sessionid", "object", "appid", "accountid", "duration", "csrfToken", "expiresAt"),
        *("lastVerifiedAt", "ended", "createdAt", "updatedAt"),
    ]
    assert re.fullmatch("sess_[0-9a-f]{16}", made["sessionid"])
    assert re.fullmatch("[0-9a-f]{64}", made["csrfToken"])
    assert (made["object"], made["duration"], made["ended"]) == ("session", 3600, False)


def test_profiles_made_together_keep_their_order(app, user, monkeypatch):
    start = next(STARTS)
    first, *later = (start + 999_997, start + 999_998, start + 999_999, start + 1_000_001)
    moments = iter([first, first, *later])  # the second is taken, as by another process
    monkeypatch.setattr(models, "now", lambda: next(moments))
    made = [create_profile(user.account, user.accountid, named(f"n{n}")) for n in range(4)]
    assert [row["createdAt"][-4:] for row in made] == ["000Z", "000Z", "000Z", "001Z"]
    assert list_profiles(ADMINISTRATOR) == made[::-1]


def test_the_clock_never_stands_still_nor_turns_back(monkeypatch):
    times = iter([1000, 1000, 500, 1001, 2000])
    monkeypatch.setattr(models.time, "time_ns", lambda: next(times))
    monkeypatch.setattr(models, "latest", 0)
    assert [models.now() for _ in range(5)] == [1000, 1001, 1002, 1003, 2000]


def test_timestamps():
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_700_000_000_999_999_999) == "2023-11-14T22:13:20.999Z"


# What they cost


@pytest.fixture
def statements(app):
    """The statements that the database was given since the list was last cleared."""
    ran = []
    hook = ran.append
    db.query_hooks.append(hook)
    yield ran
    db.query_hooks.remove(hook)


def test_statements_of_each_request(app, user, administrator, statements):
    form = {"contact-email": "a@example.com", "full-name": "A"}
    made = user.create(form).json
    assert len(statements) <= 2
    statements.clear()
    newest = user.create({**form, "default": "true"}).json["profileid"]
    assert len(statements) <= 3
    statements.clear()
    user.update(made["profileid"], form)
    assert len(statements) <= 3
    for path, cursor in zip(
        PATHS.values(), (newest, administrator.session["sessionid"]), strict=True
    ):
        for query in ("", "limit=1", "offset=1", f"after={cursor}", "all=1", "limit=1&offset=1"):
            statements.clear()
            assert administrator.get(f"{path}?{query}").json is not None
            assert len(statements) <= 2, query


@both
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("cursor", [False, True])
@pytest.mark.parametrize("skipping", [False, True])
def test_plans_read_one_range_of_one_index(app, statements, model, filtered, cursor, skipping):
    """The range is on the full key of the index; nothing is sorted but a page of keys."""
    appid, accountid = "plan-" + token_hex(4), "acct_00000000000000aa"
    made = fill_ids(model, appid, 600, accountid=accountid)  # enough for an index to be worth it
    query = {"accountid": accountid} if filtered else {}
    query |= {"after": made[300]} if cursor else {}  # in the middle: both ends are far
    query |= {"offset": 5} if skipping else {}
    statements.clear()
    rows = OPERATIONS[model](ADMINISTRATOR, appid=appid, limit=10, **query)
    start = 301 * cursor + 5 * skipping
    assert ids(model, rows) == made[start : start + 10]
    scope = ["appid", "accountid"] if filtered else ["appid"]
    index = "_".join([model._meta.table_name, *scope, "id"])
    (event,) = statements
    check = check_sqlite_plan if db.engine == "sqlite" else check_mysql_plan
    check(event, index, scope, sorted_keys=skipping)


def check_sqlite_plan(event, index, scope, sorted_keys):
    with connection():
        plan = db.execute_sql("EXPLAIN QUERY PLAN " + event.sql, event.params)
        steps = [row[3] for row in plan.fetchall()]
    wanted = " AND ".join([*(f"{name}=?" for name in scope), "id<?"])
    assert any(f"INDEX {index} (" in step and wanted in step for step in steps), steps
    assert sorted_keys or not any("TEMP B-TREE" in step for step in steps), steps
    assert not any(step.startswith("SCAN") and "keys" not in step for step in steps), steps


IDENTIFIER_BYTES = 64 + 2
"""What an identifier takes of a key in MySQL: 64 ASCII characters and their length."""
ID_BYTES = 8


def check_mysql_plan(event, index, scope, sorted_keys):
    """Columns are read by name, since MySQL has two more of them than MariaDB."""
    with connection():
        explain = "EXPLAIN FORMAT=TRADITIONAL " + event.sql
        plan = db.execute_sql(explain, event.params)
        names = [column[0] for column in plan.description]
        steps = [dict(zip(names, row, strict=True)) for row in plan.fetchall()]
    reads = [(step["type"], step["key_len"]) for step in steps if step["key"] == index]
    assert reads == [("range", str(IDENTIFIER_BYTES * len(scope) + ID_BYTES))], steps
    assert sorted_keys or not any("filesort" in (step["Extra"] or "") for step in steps), steps


def test_two_applications_share_no_row(app, make_app):
    other = make_app()
    mine, theirs = Person(app, administrator=True), Person(other, administrator=True)
    with other.app_context():
        foreign = create_profile(theirs.account, theirs.accountid, named("theirs"))
    for path in PATHS.values():
        assert all(row["appid"] == mine.appid for row in mine.get(path).json or [])
        assert mine.get(f"{path}?accountid={theirs.accountid}").json is None
    profiles, sessions = PATHS.values()
    assert_error(mine.get(f"{profiles}?after={foreign['profileid']}"), 400, "invalid-after")
    cursor = theirs.session["sessionid"]
    assert_error(mine.get(f"{sessions}?after={cursor}"), 400, "invalid-after")
    with pytest.raises(ServiceError, match="^invalid-after$"):
        list_profiles(mine.account, after=foreign["profileid"])


def test_many_threads_write_at_once(app, user):
    def make():
        for number in range(5):
            with app.app_context():
                create_profile(user.account, user.accountid, named(f"n{number}"))

    assert user.account
    at_once(*[make] * 8)
    rows = list_profiles(ADMINISTRATOR, all=True)
    assert len({row["profileid"] for row in rows}) == 40
    moments = [row["createdAt"] for row in rows]
    assert moments == sorted(moments, reverse=True)
