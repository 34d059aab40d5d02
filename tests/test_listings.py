"""The two listings: order, pages, filters, cursors, long answers, and their cost."""

import time
import tracemalloc
from itertools import chain, count
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
from rows import BATCH

PATHS = {Profile: PROFILES, Session: SESSIONS}
ACCOUNT = "acct_00000000000000aa"
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
both = pytest.mark.parametrize("model", [Profile, Session])


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their identifiers, newest first."""
    return ids(model, fill(model, appid, count, **options))


# A query, and which of 300 rows it finds; {4} is the identifier of row 4.
PAGES = {
    "": slice(10),
    "limit=&offset=": slice(10),
    "limit=3": slice(3),
    "limit=3&offset=4": slice(4, 7),
    "limit=030": slice(30),
    "limit=250&offset=30": slice(30, 280),
    f"limit={2**63 - 1}&offset={2**63 - 1}": slice(0),
    "limit=0": slice(0),
    "offset=295": slice(295, 300),
    f"offset={2**63 - 1}": slice(0),
    "all=": slice(10),
    "all=false": slice(300),
    "all=1&limit=x&offset=-1": slice(300),
    "after={4}": slice(5, 15),
    "after={4}&limit=2&offset=3": slice(8, 10),
    "after={4}&limit=1001": slice(5, 300),
    "after={4}&all=1": slice(5, 300),
    "after={299}": slice(0),
    "accountid=acct_x": slice(0),
}


@both
def test_newest_first_a_page_at_a_time(administrator, model):
    """Of one account, beside those of others and of another application."""
    others = fill_ids(model, administrator.appid, 15)
    fill(model, "another", 5, accountid=ACCOUNT)
    made = fill_ids(model, administrator.appid, 300, accountid=ACCOUNT)
    for query, part in PAGES.items():
        path = f"{PATHS[model]}?{query.format(*made)}&accountid={ACCOUNT}"
        response = administrator.get(path)
        assert response.status_code == 200
        found = ids(model, response.json)
        assert found == made[part], query
        link = response.headers.get("Link", "")
        if not found:
            assert response.data == b"null\n"
            assert not link
        elif part.stop == 300:
            assert not link
        else:
            assert link.endswith(f'&after={found[-1]}>; rel="next"')
    everything = ids(model, administrator.get(f"{PATHS[model]}?all=1").json)
    if model is Session:
        assert everything.pop(0) == administrator.session["sessionid"]
    assert everything == made + others


@both
@pytest.mark.parametrize("limit", [1, 7, 99, 100, 101, 250, 1001])
def test_links_lead_through_all_while_rows_are_added(administrator, model, limit):
    made = fill_ids(model, administrator.appid, 3 * limit, accountid=ACCOUNT)
    path = f"{PATHS[model]}?accountid={ACCOUNT}&limit={limit}"
    pages = []
    for page in walk(administrator, path):
        pages.append(ids(model, page))
        fill(model, administrator.appid, 3, accountid=ACCOUNT)
    assert [len(page) for page in pages] == [limit] * 3
    assert list(chain(*pages)) == made


REFUSED = {
    "invalid-limit": [
        "limit=-1",
        "limit=x",
        "limit=٣",
        "limit=+1",
        "limit= ",
        f"limit={2**63}",
        f"limit={'9' * 5000}",
        "limit=x&offset=x&after=x",
    ],
    "invalid-offset": [
        "offset=-1",
        "offset=0x1",
        f"offset={2**63}",
    ],
    "invalid-after": [
        "after=prof_0123456789abcdef",
        "after=sess_0123456789abcdef",
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
        ("after", [5, []]),
        ("accountid", [5, b"acct_x"]),
    ],
)
def test_arguments_refused_in_process(app, name, values):
    for value in values:
        with pytest.raises(ServiceError, match=f"^invalid-{name}$"):
            list_profiles(ADMINISTRATOR, **{name: value})


def test_all_that_is_false_in_process(app):
    fill(Profile, app.config["APPID"], 11)
    for value in (False, 0, None):
        assert len(list_profiles(ADMINISTRATOR, all=value)) == 10


@pytest.mark.parametrize("prefix", ["", "/a%20b", "/%C3%A9", "/%25"])
def test_the_link_is_relative_and_keeps_the_query(user, administrator, prefix):
    made = [user.create(named(name)).json for name in "abc"]
    query = f"accountid={user.accountid}&limit=2"
    response = administrator.send(
        "GET", f"{PROFILES}?{query}&offset=0", base_url=f"http://localhost{prefix}"
    )
    path = f"{prefix}{PROFILES}?{query}&after={made[1]['profileid']}"
    assert response.headers["Link"] == f'<{path}>; rel="next"'
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
    owner = SimpleNamespace(accountid=elsewhere.accountid, administrator=True)
    callers = [administrator.account]
    for other in (administrator.appid, appid.upper(), None):
        callers.append(SimpleNamespace(**vars(owner), appid=other))
    for caller in callers:
        for list_rows in list_profiles, list_sessions:
            with pytest.raises(ServiceError, match="^administrator-required$"):
                list_rows(caller, appid=appid)

    profile = elsewhere.create(named("theirs")).json
    for caller in elsewhere.account, owner:
        assert list_profiles(caller, appid=appid) == [profile]
        sessions = list_sessions(caller, appid=appid)
        assert ids(Session, sessions) == [elsewhere.session["sessionid"]]
        profile = update_profile(
            caller, profile["profileid"], named("mine"), appid=appid
        )


# Long answers


def test_a_page_of_up_to_100_rows_is_one_statement(app):
    fill(Profile, app.config["APPID"], 101)
    events = []
    db.query_hooks.append(events.append)
    for limit in (1, 99, 100):
        assert len(list_profiles(ADMINISTRATOR, limit=limit)) == limit
        assert len(events) == 1
        events.clear()


@pytest.mark.parametrize("limit", [100, 250, 340])
@pytest.mark.parametrize("nth", range(2, 7))
def test_a_walk_beside_commits(administrator, limit, nth):
    """No row that was there is lost or seen twice. A page of 100 stays one of 100.

    At the nth statement, others are committed between the 5th row and the 305th.
    """
    rows = fill(Profile, administrator.appid, 350)
    late = []
    for row in rows[5:305:4]:
        moment = int(row["phone"].split()[1]) + 1
        late.append(new_row(Profile, moment, administrator.appid, ACCOUNT))
    numbers = count(1)

    def commit_late(event):
        if next(numbers) == nth:
            at_once(transaction()(Profile.insert_many(late).execute))

    db.query_hooks.append(commit_late)
    seen = []
    for page in walk(administrator, f"{PROFILES}?limit={limit}"):
        assert limit > 100 or len(page) <= limit
        seen += ids(Profile, page)
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


@pytest.mark.parametrize(
    ("length", "batch"),
    [
        (65_536, 100),
        (65_537, 99),
        (2**31 - 1, 1),
    ],
)
def test_batches_are_smaller_when_bodies_may_be_larger(make_app, length, batch):
    """About 6 MB of rows are held at a time."""
    app = make_app(MAXIMUM_POST_DATA_LENGTH=length)
    person = Person(app, administrator=True)
    fill(Profile, person.appid, 2 * batch + 1)
    rows, _ = read_chunks(person.get(f"{PROFILES}?all=1"))
    assert [number for number in rows if number] == [batch, batch, 1]


@both
def test_memory_does_not_grow_with_the_answer(administrator, model):
    """Four times the rows take no more: the client reads them as they come."""
    made = fill_ids(model, administrator.appid, 12 * BATCH + 1)
    path = f"{PATHS[model]}?after="
    rows, least = read_chunks(administrator.get(f"{path}{made[-3 * BATCH - 1]}&all=1"))
    assert sum(rows) == 3 * BATCH
    for query in ("all=1", f"limit={2**63 - 1}"):
        rows, peak = read_chunks(administrator.get(f"{path}{made[0]}&{query}"))
        assert sum(rows) == 12 * BATCH
        assert peak < 1.2 * least


def test_profiles_keep_their_order_whatever_the_clock_does(app, user, monkeypatch):
    """It stands still, and turns back."""
    now = time.time_ns()
    made = []
    for moment in (now, now, now - 10**9):
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
        wanted = "=? AND ".join([*columns, "id<?"])
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
