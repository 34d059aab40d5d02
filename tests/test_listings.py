"""The two listings: order, pages, filters, cursors, long answers, and their cost."""

import re
import time
import tracemalloc
from itertools import chain, count
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import damage, execute, fill, new_row, on_sqlite
from serving import PROFILES, SESSIONS, Person, assert_error, at_once, named, walk
from werkzeug.test import EnvironBuilder

import rows
from database import connection, db, transaction
from errors import ServiceError
from models import Profile, Session
from operations import list_profiles, list_sessions, update_profile
from rows import BATCH
from validators import identifier

PATHS = {Profile: PROFILES, Session: SESSIONS}
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
both = pytest.mark.parametrize("model", [Profile, Session])


@pytest.fixture
def accountid():
    """Of an account that is made with its first rows."""
    return identifier("acct")


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their identifiers, newest first."""
    return ids(model, fill(model, appid, count, **options))


# A query, and which of 300 rows it finds; {4} is the identifier of row 4.
PAGES = """\
offset= 0:10
limit=&offset= 0:10
limit=3 0:3
limit=3&offset=4 4:7
limit=030 0:30
limit=250&offset=30 30:280
limit=9223372036854775807&offset=9223372036854775807 0:0
limit=0 0:0
offset=295 295:300
offset=9223372036854775807 0:0
all= 0:10
all=false 0:300
all=1&limit=x&offset=-1 0:300
after={4} 5:15
after={4}&limit=2&offset=3 8:10
after={4}&limit=1001 5:300
after={4}&all=1 5:300
after={299} 0:0
accountid=acct_x 0:0""".splitlines()


@both
def test_newest_first_a_page_at_a_time(administrator, accountid, model):
    """Of one account, beside those of others and of another application."""
    others = fill_ids(model, administrator.appid, 15)
    fill(model, "another", 5)
    made = fill_ids(model, administrator.appid, 300, accountid=accountid)
    for line in PAGES:
        query, part = line.format(*made).split()
        first, end = map(int, part.split(":"))
        path = f"{PATHS[model]}?{query}&accountid={accountid}"
        response = administrator.get(path)
        assert response.status_code == 200
        found = ids(model, response.json)
        assert found == made[first:end], line
        link = response.headers.get("Link", "")
        if not found:
            assert response.data == b"null\n"
            assert not link
        elif end == 300:
            assert not link
        else:
            assert link.endswith(f'&after={found[-1]}>; rel="next"')
    everything = ids(model, administrator.get(f"{PATHS[model]}?all=1").json)
    if model is Session:
        assert everything.pop(0) == administrator.session["sessionid"]
    assert everything == made + others


REFUSED = f"""\
invalid-limit limit=-1
invalid-limit limit=x
invalid-limit limit=٣
invalid-limit limit=+1
invalid-limit limit=%20
invalid-limit limit=9223372036854775808
invalid-limit limit={"9" * 5000}
invalid-limit limit=x&offset=x&after=x
invalid-offset offset=-1
invalid-offset offset=0x1
invalid-offset offset=9223372036854775808
invalid-after after=prof_0123456789abcdef
invalid-after after=sess_0123456789abcdef
invalid-after after=x
invalid-after after=x&all=1
invalid-after after=x&limit=0""".splitlines()


@both
def test_refused_queries(administrator, model):
    for line in REFUSED:
        code, query = line.split()
        assert_error(administrator.get(f"{PATHS[model]}?{query}"), 400, code)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("limit", [-1, 1.5, True, [], 2**63]),
        ("offset", [-1, "x", {}]),
        ("after", [5]),
    ],
)
def test_arguments_refused_in_process(app, name, values):
    for value in values:
        with pytest.raises(ServiceError, match=f"^invalid-{name}$"):
            list_profiles(ADMINISTRATOR, **{name: value})


@pytest.mark.parametrize("prefix", ["", "/a%20b", "/%C3%A9"])
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


@pytest.mark.parametrize("limit", [7, 100, 101, 250, 349, 400, None])
@pytest.mark.parametrize("nth", range(2, 8))
def test_a_walk_beside_commits(administrator, limit, nth):
    """No row that was there is lost or seen twice, and each page is of one moment.

    At the nth statement, others are committed between the 5th row and the 305th.
    """
    rows = fill(Profile, administrator.appid, 350)
    late = []
    for row in rows[5:305:4]:
        moment = int(row["phone"].split()[1]) + 1
        late.append(new_row(Profile, moment, row["appid"], row["accountid"]))
    numbers = count(1)

    def commit_late(event):
        if next(numbers) == nth:
            at_once(transaction()(Profile.insert_many(late).execute))

    db.query_hooks.append(commit_late)
    query = f"limit={limit}" if limit else "all=1"
    pages = [ids(Profile, page) for page in walk(administrator, f"{PROFILES}?{query}")]
    seen = list(chain(*pages))
    assert len(set(seen)) == len(seen)
    made = ids(Profile, rows)
    there = set(made)
    assert [each for each in seen if each in there] == made
    everything = ids(Profile, administrator.profiles())
    assert len(everything) == len(rows) + len(late)
    for page in pages:
        assert len(page) <= (limit or len(everything))
        part = everything[everything.index(page[0]) : everything.index(page[-1]) + 1]
        assert page in (part, [each for each in part if each in there])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("query", ["all=1", "limit=250", "limit=300"])
def test_an_answer_that_nobody_reads(
    administrator, database_url, monkeypatch, method, query
):
    """The next request of its thread is not part of its transaction.

    It is ended by the service, not by the collection of garbage.
    """
    fill(Profile, administrator.appid, 3 * BATCH)
    kept = []
    read_batches = rows.read_batches

    def keep_batches(*values):
        kept.append(read_batches(*values))
        return kept[-1]

    monkeypatch.setattr(rows, "read_batches", keep_batches)
    for chunks in range(3):
        response = administrator.send(method, f"{PROFILES}?{query}")
        for _ in zip(range(chunks), response.response, strict=False):
            pass
        response.close()
        made = administrator.create(named("next")).json["profileid"]
        own = f"SELECT fullName FROM profile WHERE profileid = '{made}'"
        assert execute(database_url, own) == [("next",)]


def begin_reading(person):
    """An answer of which a part is read, and the environment for the log."""
    request = EnvironBuilder(f"{PROFILES}?all=all", headers=person.headers)
    environ = request.get_environ()
    answer = person.client.application(environ, lambda *args: None)
    assert next(iter(answer)).startswith(b"[{")
    return answer, environ


def test_a_long_answer_is_cut_short(make_app, empty_database_url, caplog):
    person = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    fill(Profile, person.appid, 3 * BATCH)
    db.close()  # which has kept all of it in memory
    answer, environ = begin_reading(person)
    damage(empty_database_url)
    with pytest.raises(ServiceError):
        list(answer)
    answer.close()
    assert environ["profiles.code"] == "database-unavailable"
    assert "database unavailable: " in caplog.text


@on_sqlite
def test_a_long_answer_with_what_has_no_json_is_cut_short(administrator, database_url):
    rows = fill(Profile, administrator.appid, 3 * BATCH)
    oldest = f"profileid = '{rows[-1]['profileid']}'"
    execute(database_url, f"UPDATE profile SET phone = x'ff' WHERE {oldest}")
    answer, environ = begin_reading(administrator)
    with pytest.raises(TypeError):
        list(answer)
    answer.close()
    assert environ["profiles.code"] == "internal-error"


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


@both
def test_plans_read_one_range_of_one_index(administrator, accountid, model):
    """The range is on the full key of the index, and nothing is sorted."""
    made = fill_ids(model, administrator.appid, 600, accountid=accountid)
    after = made[300]  # in the middle: both ends are far
    for query, columns in [
        ("", ["appid"]),
        (f"&after={after}", ["appid"]),
        (f"&accountid={accountid}", ["appid", "accountid"]),
        (f"&accountid={accountid}&after={after}", ["appid", "accountid"]),
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
        assert re.search(rf"INDEX \S+ \({re.escape(wanted)}\)", step["detail"])
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


def test_a_long_page_whose_link_cannot_be_read_leaves_no_transaction(app, monkeypatch):
    fill(Profile, app.config["APPID"], BATCH + 2)
    with monkeypatch.context() as patch:
        patch.setattr(
            rows, "find_next", lambda *_: db.execute_sql("SELECT * FROM none")
        )
        with pytest.raises(ServiceError, match="database-unavailable"):
            list_profiles(ADMINISTRATOR, limit=BATCH + 1)
    assert not db.in_transaction()
    assert len(list_profiles(ADMINISTRATOR, limit=BATCH + 1)) == BATCH + 1
