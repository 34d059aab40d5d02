"""The two listings: order, pages, filters, cursors, long answers, and their cost."""

import time
import tracemalloc
from itertools import count
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import execute, fill, new_row, on_sqlite
from serving import PROFILES, SESSIONS, Person, assert_error, at_once, named, walk
from werkzeug.test import EnvironBuilder

from database import connection, db, transaction
from errors import ServiceError
from models import Profile, Session
from operations import create_profile, list_profiles, list_sessions, update_profile
from rows import BATCH, LONGEST_PAGE

PATHS = {Profile: PROFILES, Session: SESSIONS}
ACCOUNT = "acct_00000000000000aa"
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
both = pytest.mark.parametrize("model", [Profile, Session])


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their identifiers, newest first."""
    return ids(model, fill(model, appid, count, **options))


# A query, and which of 30 rows it finds; {4} is the identifier of row 4.
PAGES = {
    "": slice(10),
    "limit=&offset=": slice(10),
    "limit=3": slice(3),
    "limit=3&offset=4": slice(4, 7),
    "limit=030": slice(30),
    f"limit={2**63 - 1}": slice(30),
    f"limit={2**63 - 1}&offset={2**63 - 1}": slice(0),
    "limit=0": slice(0),
    "offset=25": slice(25, 30),
    "offset=31": slice(0),
    f"offset={2**63 - 1}": slice(0),
    "all=": slice(10),
    "all=true": slice(30),
    "all=false": slice(30),
    "all=1&limit=x&offset=-1": slice(30),
    "after={4}": slice(5, 15),
    "after={4}&limit=2&offset=3": slice(8, 10),
    "after={4}&limit=1001": slice(5, 30),
    "after={4}&all=1": slice(5, 30),
    "after={29}": slice(0),
    "accountid=acct_x": slice(0),
}


@both
def test_newest_first_a_page_at_a_time(administrator, model):
    """Of one account, beside those of others and of another application."""
    others = fill_ids(model, administrator.appid, 15)
    fill(model, "another", 5, accountid=ACCOUNT)
    made = fill_ids(model, administrator.appid, 30, accountid=ACCOUNT)
    for query, part in PAGES.items():
        path = f"{PATHS[model]}?{query.format(*made)}&accountid={ACCOUNT}"
        response = administrator.get(path)
        assert response.status_code == 200
        assert ids(model, response.json) == made[part], query
        if not made[part]:
            assert response.data == b"null\n"
            assert "Link" not in response.headers
    everything = ids(model, administrator.get(f"{PATHS[model]}?all=1").json)
    if model is Session:
        assert everything.pop(0) == administrator.session["sessionid"]
    assert everything == made + others


@both
@pytest.mark.parametrize("limit", [1, 7, 10, 15, 29, 30, 31])
def test_links_lead_through_all_while_rows_are_added(administrator, model, limit):
    made = fill_ids(model, administrator.appid, 30, accountid=ACCOUNT)
    path = f"{PATHS[model]}?accountid={ACCOUNT}&limit={limit}"
    pages = []
    for page in walk(administrator, path):
        pages.append(ids(model, page))
        fill(model, administrator.appid, 3, accountid=ACCOUNT)
    assert pages == [made[at : at + limit] for at in range(0, 30, limit)]


REFUSED = {
    "invalid-limit": [
        "limit=-1",
        "limit=x",
        "limit=1.0",
        "limit=٣",
        "limit=+1",
        "limit=1e3",
        "limit= ",
        f"limit={2**63}",
        f"limit={'9' * 5000}",
        "limit=x&offset=x&after=x",
    ],
    "invalid-offset": [
        "offset=-1",
        "offset=x",
        "offset=0x1",
        "offset=１",
        "offset=1 ",
        f"offset={2**63}",
    ],
    "invalid-after": [
        "after=prof_0123456789abcdef",
        "after=sess_0123456789abcdef",
        "after=acct_0123456789abcdef",
        "after=x",
        "after=x&all=1",
        "after=x&limit=0",
    ],
}


@both
@pytest.mark.parametrize("code", REFUSED)
def test_refused_queries(administrator, model, code):
    for query in REFUSED[code]:
        assert_error(administrator.get(f"{PATHS[model]}?{query}"), 400, code)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("limit", [-1, 1.5, True, [], 2**63]),
        ("offset", [-1, "x", {}]),
        ("after", [5, [], "x"]),
        ("accountid", [5, [], b"acct_x"]),
    ],
)
def test_arguments_refused_in_process(app, name, values):
    for value in values:
        with pytest.raises(ServiceError, match=f"^invalid-{name}$"):
            list_profiles(ADMINISTRATOR, **{name: value})


@pytest.mark.parametrize("value", [False, 0, "", None])
def test_all_that_is_false_in_process(app, value):
    made = fill_ids(Profile, app.config["APPID"], 11)
    assert ids(Profile, list_profiles(ADMINISTRATOR, all=value)) == made[:10]


def test_the_link_is_relative_and_keeps_the_query(user, administrator):
    made = [user.create(named(name)).json for name in "abc"]
    query = f"accountid={user.accountid}&limit=2"
    response = administrator.get(f"{PROFILES}?{query}&offset=0")
    link = f"/api/administrator/profiles?{query}&after={made[1]['profileid']}"
    assert response.headers["Link"] == f'<{link}>; rel="next"'
    assert response.json == [made[2], made[1]]


@pytest.fixture
def elsewhere(app):
    """An administrator of another application."""
    return Person(app, administrator=True, appid=f"elsewhere-{token_hex(4)}")


@both
def test_a_listing_ends_with_the_application(user, administrator, elsewhere, model):
    path = PATHS[model]
    made = fill_ids(model, elsewhere.appid, 1, accountid=elsewhere.accountid)
    response = user.get(f"{path}?limit=x&after=y")
    assert_error(response, 403, "administrator-required")
    for row in administrator.get(path).json or []:
        assert row["appid"] == administrator.appid
    assert administrator.get(f"{path}?accountid={elsewhere.accountid}").json is None
    response = administrator.get(f"{path}?after={made[0]}")
    assert_error(response, 400, "invalid-after")


def test_rights_of_a_caller_end_with_its_application(administrator, elsewhere):
    """A caller without an appid is trusted in each application."""
    appid = elsewhere.appid
    accountid = elsewhere.accountid
    made = elsewhere.create(named("theirs")).json
    body = named("mine")
    owner = SimpleNamespace(accountid=accountid, administrator=True)

    def assert_no_rights(caller):
        for list_rows in list_profiles, list_sessions:
            with pytest.raises(ServiceError, match="^administrator-required$"):
                list_rows(caller, appid=appid)
        with pytest.raises(ServiceError, match="^invalid-account$"):
            update_profile(caller, made["profileid"], body, appid=appid)
        with pytest.raises(ServiceError, match="^invalid-account$"):
            create_profile(caller, accountid, body, appid=appid)

    assert_no_rights(administrator.account)
    for other in (administrator.appid, appid.upper(), None):
        assert_no_rights(SimpleNamespace(**vars(owner), appid=other))
    for caller in elsewhere.account, owner:
        assert list_profiles(caller, appid=appid) == [made]
        sessions = ids(Session, list_sessions(caller, appid=appid))
        assert sessions == [elsewhere.session["sessionid"]]
        made = update_profile(caller, made["profileid"], body, appid=appid)


# Long answers


@both
def test_all_has_no_link(administrator, model):
    """Its batches are whole, or not."""
    made = fill_ids(model, administrator.appid, 2 * BATCH + 2)
    for number in (BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 2 * BATCH + 1):
        path = f"{PATHS[model]}?all=1&after={made[-number - 1]}"
        response = administrator.get(path)
        assert ids(model, response.json) == made[-number:]
        assert "Link" not in response.headers


@both
@pytest.mark.parametrize("more", [0, 1])
def test_only_a_page_of_up_to_1000_rows_has_a_link(administrator, model, more):
    made = fill_ids(model, administrator.appid, LONGEST_PAGE + BATCH + 3)
    for beyond in (0, 1, BATCH, BATCH + 1):
        limit = LONGEST_PAGE + beyond
        left = made[-limit - more :]
        path = f"{PATHS[model]}?after={made[-limit - more - 1]}&limit={limit}"
        response = administrator.get(path)
        assert ids(model, response.json) == left[:limit]
        assert ("Link" in response.headers) == (more == 1 and beyond == 0)


@pytest.mark.parametrize(
    ("limit", "nth"),
    [
        (300, 3),
        (LONGEST_PAGE + 50, 2),
        (LONGEST_PAGE + 50, 3),
        (LONGEST_PAGE + 50, 4),
    ],
)
def test_a_walk_beside_commits(administrator, limit, nth):
    """No page is over its limit. No row that was there is lost or seen twice.

    At the nth statement, others are committed between the 205th row and the 305th.
    """
    rows = fill(Profile, administrator.appid, LONGEST_PAGE + 150)
    moments = [int(row["phone"].split()[1]) for row in rows[205:305:4]]
    late = [
        new_row(Profile, moment + 1, administrator.appid, ACCOUNT) for moment in moments
    ]
    numbers = count(1)

    def commit_late(event):
        if next(numbers) == nth:
            at_once(transaction()(Profile.insert_many(late).execute))

    db.query_hooks.append(commit_late)
    seen = []
    page = [""]
    while page:
        path = f"{PROFILES}?limit={limit}&after={page[-1]}"
        page = ids(Profile, administrator.get(path).json)
        assert len(page) <= limit
        seen += page
    assert len(set(seen)) == len(seen)
    made = ids(Profile, rows)
    there = set(made)
    assert [each for each in seen if each in there] == made
    assert len(administrator.profiles()) == len(rows) + len(late)


@pytest.fixture
def damage_meanwhile(make_app, empty_database_url):
    """Damages the database once an answer has begun; returns the code for the log."""
    app = make_app(DATABASE_URL=empty_database_url)
    person = Person(app, administrator=True)
    fill(Profile, person.appid, 3 * BATCH)
    builder = EnvironBuilder(f"{PROFILES}?all=all", headers=person.headers)
    environ = builder.get_environ()

    def execute_meanwhile(statement):
        chunks = iter(app(environ, lambda *args: None))
        assert next(chunks).startswith(b"[{")
        execute(empty_database_url, statement)
        with pytest.raises((ServiceError, TypeError)):
            list(chunks)
        chunks.close()
        return environ["profiles.code"]

    return execute_meanwhile


def test_a_long_answer_is_cut_short(damage_meanwhile, caplog):
    assert damage_meanwhile("DROP TABLE profile") == "database-unavailable"
    assert "database unavailable: " in caplog.text


@on_sqlite
def test_a_long_answer_with_what_has_no_json_is_cut_short(damage_meanwhile):
    oldest = "(SELECT min(id) FROM profile)"
    sql = f"UPDATE profile SET phone = x'ff' WHERE id = {oldest}"
    assert damage_meanwhile(sql) == "internal-error"


def read_chunks(response):
    """How many rows each chunk holds, and the peak of the memory meanwhile."""
    tracemalloc.start()
    rows = [chunk.count(b'"updatedAt"') for chunk in response.iter_encoded()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return rows, peak


@both
def test_memory_does_not_grow_with_the_answer(administrator, model):
    """Four times the rows take no more: the client reads them as they come."""
    made = fill_ids(model, administrator.appid, 12 * BATCH + 1)
    path = f"{PATHS[model]}?after="
    rows, least = read_chunks(administrator.get(f"{path}{made[-3 * BATCH - 1]}&all=1"))
    assert (sum(rows), max(rows)) == (3 * BATCH, BATCH)
    for query in ("all=1", f"limit={2**63 - 1}"):
        rows, peak = read_chunks(administrator.get(f"{path}{made[0]}&{query}"))
        assert (sum(rows), max(rows)) == (12 * BATCH, BATCH)
        assert peak < 1.2 * least


@pytest.mark.parametrize("seconds", [0, -1])
def test_profiles_keep_their_order_whatever_the_clock_does(
    app, user, monkeypatch, seconds
):
    """It stands still, or turns back."""
    now = time.time_ns()
    made = []
    for number in range(3):
        moment = now + number * seconds * 10**9
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        made.append(user.create(named("name")).json)
    assert list_profiles(ADMINISTRATOR) == made[::-1]
    moments = [profile["createdAt"] for profile in made]
    assert moments == sorted(moments)


def test_many_threads_write_at_once(app, user):
    account = user.account

    def create_some():
        with app.app_context():
            for _ in range(5):
                create_profile(account, account.accountid, named("name"))

    at_once(*[create_some] * 8)
    profiles = list_profiles(ADMINISTRATOR, all=True)
    moments = [profile["createdAt"] for profile in profiles]
    assert moments == sorted(moments, reverse=True)
    assert len(set(ids(Profile, profiles))) == 40


@both
def test_plans_read_one_range_of_one_index(administrator, model):
    """The range is on the full key of the index, and nothing is sorted."""
    made = fill_ids(model, administrator.appid, 600, accountid=ACCOUNT)
    after = made[300]  # in the middle: both ends are far
    for query, columns in [
        ("", ["appid"]),
        (f"&after={after}", ["appid"]),
        (f"&accountid={ACCOUNT}", ["appid", "accountid"]),
        (f"&accountid={ACCOUNT}&after={after}", ["appid", "accountid"]),
    ]:
        for offset in (0, 5):
            events = []
            db.query_hooks[:] = [events.append]
            administrator.get(f"{PATHS[model]}?offset={offset}{query}")
            check_plan(events[-1], model.TABLE, columns)


def check_plan(event, table, columns):
    """Check how the database does what it was given, for a range of these columns."""
    index = "_".join([table, *columns, "id"])
    if db.kind == "sqlite":
        (step,) = explain("EXPLAIN QUERY PLAN", event)
        wanted = " AND ".join([*(f"{name}=?" for name in columns), "id<?"])
        assert step["detail"].startswith("SEARCH")
        assert f"INDEX {index} ({wanted})" in step["detail"]
    else:
        (step,) = explain("EXPLAIN FORMAT=TRADITIONAL", event)
        length = len(columns) * (64 + 2) + 8  # ASCII characters, their number; an id
        assert step["key"] == index
        assert step["type"] == "range"
        assert step["key_len"] == str(length)
        assert "filesort" not in (step["Extra"] or "")


def explain(word, event):
    """The steps of the plan. MySQL's have two columns more than MariaDB's."""
    with connection():
        plan = db.execute_sql(f"{word} {event.sql}", event.params)
        names = [column[0] for column in plan.description]
        return [dict(zip(names, row, strict=True)) for row in plan.fetchall()]
