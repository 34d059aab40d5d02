"""The two listings: order, paging, filters, cursors, long answers, and what they cost."""

import time
import tracemalloc
from itertools import count, product
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import execute, fill, is_sqlite, new_row
from serving import PROFILES, SESSIONS, Person, assert_error, at_once, named, walk
from werkzeug.test import EnvironBuilder

from database import connection, db, transaction
from errors import ServiceError
from models import Profile, Session
from operations import create_profile, list_profiles, list_sessions, update_profile
from rows import BATCH, LONGEST_PAGE

PATHS = {Profile: PROFILES, Session: SESSIONS}
OPERATIONS = {Profile: list_profiles, Session: list_sessions}
ACCOUNT = "acct_00000000000000aa"
ADMINISTRATOR = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=True)
both = pytest.mark.parametrize("model", [Profile, Session])


def ids(model, rows):
    return [row[model.PUBLIC_ID] for row in rows or []]


def fill_ids(model, appid, count, **options):
    """Store rows; returns their public ids, newest first."""
    return ids(model, fill(model, appid, count, **options))


@both
def test_newest_first_a_page_at_a_time(administrator, model):
    """Of one account, beside those of others and of another application."""
    others = fill_ids(model, administrator.appid, 15)
    fill(model, "another", 5, accountid=ACCOUNT)
    made = fill_ids(model, administrator.appid, 30, accountid=ACCOUNT)
    for query, expected in [
        *(("", made[:10]), ("limit=&offset=", made[:10]), ("all=", made[:10])),
        *(
            ("limit=3", made[:3]),
            ("limit=3&offset=4", made[4:7]),
            ("limit=030", made[:30]),
        ),
        *(("offset=25", made[25:]), ("offset=25&limit=5", made[25:30])),
        *((f"limit={number}", made) for number in (LONGEST_PAGE + 1, 2**63 - 1)),
        *((f"all={text}", made) for text in ("true", "false", "1&limit=x&offset=-1")),
        *(
            (f"after={made[4]}", made[5:15]),
            (f"after={made[4]}&limit=2&offset=3", made[8:10]),
        ),
        *(
            (f"after={made[4]}&{query}", made[5:])
            for query in ("all=1", "limit=1001", "limit=999")
        ),
        *((query, []) for query in ("offset=31", f"offset={2**63 - 1}", "limit=0")),
        *(
            (query, [])
            for query in (f"after={made[-1]}", "accountid=acct_x", "accountid=acct_")
        ),
    ]:
        response = administrator.get(f"{PATHS[model]}?{query}&accountid={ACCOUNT}")
        assert (response.status_code, ids(model, response.json)) == (200, expected), (
            query
        )
        assert expected or (response.data, "Link" in response.headers) == (
            b"null\n",
            False,
        )
    everything = ids(model, administrator.get(f"{PATHS[model]}?all=1").json)
    assert (
        everything[model is Session :] == made + others
    )  # its own session is the newest


@both
def test_links_lead_through_everything_once_while_rows_are_added(administrator, model):
    made = fill_ids(model, administrator.appid, 30, accountid=ACCOUNT)
    for limit in (1, 7, 10, 15, 29, 30, 31):
        pages, added = [], []
        for page in walk(
            administrator, f"{PATHS[model]}?accountid={ACCOUNT}&limit={limit}"
        ):
            added = added or fill_ids(model, administrator.appid, 3, accountid=ACCOUNT)
            pages.append(ids(model, page))
        assert pages == [made[at : at + limit] for at in range(0, len(made), limit)]
        made = added + made


@both
def test_refused_queries(administrator, model):
    for query, code in [
        *(
            (f"limit={text}", "invalid-limit")
            for text in ("-1", "x", "1.0", "٣", "+1", "1e3", " ")
        ),
        *(
            (f"offset={text}", "invalid-offset")
            for text in ("-1", "x", "0x1", "１", "1 ", 2**63)
        ),
        *(
            (f"limit={text}", "invalid-limit")
            for text in (2**63, "9" * 5000, "x&offset=x&after=x")
        ),
        *(
            (f"after={kind}_0123456789abcdef", "invalid-after")
            for kind in ("prof", "sess", "acct")
        ),
        *((f"{query}&after=x", "invalid-after") for query in ("", "all=1", "limit=0")),
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
    made = fill_ids(Profile, app.config["APPID"], 11)
    for query in ({"all": False}, {"all": 0}, {"all": ""}, {"all": None}, {}):
        assert ids(Profile, list_profiles(ADMINISTRATOR, **query)) == made[:10], query


def test_the_link_is_relative_and_keeps_the_query(user, administrator):
    made = [user.create(named(name)).json for name in "abc"]
    query = f"accountid={user.accountid}&limit=2"
    response = administrator.get(f"{PROFILES}?{query}&offset=0")
    link = f"/api/administrator/profiles?{query}&after={made[1]['profileid']}"
    assert response.headers["Link"] == f'<{link}>; rel="next"'
    assert response.json == made[:0:-1]


def test_rights_end_with_the_application(app, user, administrator):
    """Those of a caller that has an appid; one without it is trusted in each."""
    theirs = Person(app, administrator=True, appid=f"theirs-{token_hex(4)}")
    made, own = theirs.create(named("theirs")).json, {"appid": theirs.appid}
    for path, after in (
        (PROFILES, made["profileid"]),
        (SESSIONS, theirs.session["sessionid"]),
    ):
        assert_error(user.get(f"{path}?limit=x&after=y"), 403, "administrator-required")
        assert {row["appid"] for row in administrator.get(path).json or []} <= {
            administrator.appid
        }
        assert administrator.get(f"{path}?accountid={theirs.accountid}").json is None
        assert_error(administrator.get(f"{path}?after={after}"), 400, "invalid-after")
    owner = {"accountid": theirs.accountid, "administrator": True}
    others = (administrator.appid, theirs.appid.upper(), None)
    for caller in (
        administrator.account,
        *(SimpleNamespace(**owner, appid=a) for a in others),
    ):
        for call, code, *arguments in (
            (list_profiles, "administrator-required"),
            (list_sessions, "administrator-required"),
            (update_profile, "invalid-account", made["profileid"], named("mine")),
            (create_profile, "invalid-account", theirs.accountid, named("mine")),
        ):
            with pytest.raises(ServiceError, match=f"^{code}$"):
                call(caller, *arguments, **own)
    for caller in (theirs.account, SimpleNamespace(**owner)):
        assert list_profiles(caller, **own) == [made]
        assert ids(Session, list_sessions(caller, **own)) == [
            theirs.session["sessionid"]
        ]
        made = update_profile(caller, made["profileid"], named("mine"), **own)


# Long answers


@both
def test_answers_of_any_length(administrator, model):
    """A page of up to 1,000 rows has a link to the next, a longer one has none."""
    made = fill_ids(
        model, administrator.appid, LONGEST_PAGE + BATCH + 3, accountid=ACCOUNT
    )
    path = f"{PATHS[model]}?accountid={ACCOUNT}&after="
    for left in (BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, 2 * BATCH + 1):
        response = administrator.get(f"{path}{made[-left - 1]}&all=1")
        assert (ids(model, response.json), "Link" in response.headers) == (
            made[-left:],
            False,
        )
    limits = (
        LONGEST_PAGE,
        LONGEST_PAGE + 1,
        LONGEST_PAGE + BATCH,
        LONGEST_PAGE + BATCH + 1,
    )
    for limit, more in product(limits, (0, 1)):
        response = administrator.get(f"{path}{made[-limit - more - 1]}&limit={limit}")
        expected = made[-limit - more :][:limit], more and limit == LONGEST_PAGE
        assert (ids(model, response.json), "Link" in response.headers) == expected


@pytest.fixture
def statements(app):
    """The statements that the database was given since the list was last cleared."""
    db.query_hooks.append((ran := []).append)
    return ran


@pytest.mark.parametrize(
    ("limit", "nth"), [(300, 3), *((LONGEST_PAGE + 50, n) for n in (2, 3, 4))]
)
def test_a_walk_beside_commits(administrator, limit, nth):
    """No page is longer than its limit, and no row that was there is lost or seen twice.

    At the nth statement, others are committed between the 205th row and the 305th.
    """
    numbers, seen, page = count(1), [], [""]
    rows = fill(Profile, administrator.appid, LONGEST_PAGE + 150)
    moments = [int(row["phone"].split()[1]) for row in rows[205:305:4]]
    late = [
        new_row(Profile, each + 1, administrator.appid, ACCOUNT) for each in moments
    ]

    def hook(event):
        if next(numbers) == nth:
            at_once(transaction()(Profile.insert_many(late).execute))

    db.query_hooks.append(hook)
    while page := administrator.get(f"{PROFILES}?limit={limit}&after={page[-1]}").json:
        seen += (page := ids(Profile, page))
        assert len(page) <= limit
    made = dict.fromkeys(ids(Profile, rows))
    assert len({*seen}) == len(seen) and [each for each in seen if each in made] == [
        *made
    ]
    assert len(administrator.profiles()) == LONGEST_PAGE + 175


def test_a_long_answer_that_breaks_is_cut_short(empty_database_url, make_app, caplog):
    person = Person(
        app := make_app(DATABASE_URL=empty_database_url), administrator=True
    )
    fill(Profile, person.appid, 3 * BATCH)
    breaks = [("DROP TABLE profile", "database-unavailable")]
    if is_sqlite(empty_database_url):  # which stores what is no text, and has no JSON
        blob = (
            "UPDATE profile SET phone = x'ff' WHERE id = (SELECT min(id) FROM profile)"
        )
        breaks.insert(0, (blob, "internal-error"))
    for statement, code in breaks:
        environ = EnvironBuilder(
            f"{PROFILES}?all=all", headers=person.headers
        ).get_environ()
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
    for batches, query in ((3, "all=1"), (12, "all=1"), (12, f"limit={2**63 - 1}")):
        appid = f"memory-{token_hex(4)}"
        fill(model, appid, batches * BATCH)
        person = Person(app, administrator=True, appid=appid)
        response = person.get(f"{PATHS[model]}?{query}")
        tracemalloc.start()
        rows = [chunk.count(b'"updatedAt"') for chunk in response.iter_encoded()]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (sum(rows), max(rows)) == (batches * BATCH + (model is Session), BATCH)
    assert max(peaks) < 1.2 * peaks[0]


def test_profiles_keep_their_order_whatever_the_clock_does(app, user, monkeypatch):
    """It stands still and turns back."""
    now, made = time.time_ns(), []
    for clock in (now, now, now - 10**9):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        made.append(user.create(named("name")).json)
    assert list_profiles(ADMINISTRATOR) == made[::-1]
    assert sorted(row["createdAt"] for row in made) == [
        row["createdAt"] for row in made
    ]


def test_many_threads_write_at_once(app, user):
    account = user.account

    def make():
        with pytest.raises(RuntimeError, match="application context"):
            create_profile(account, account.accountid, named("name"))
        with app.app_context():
            for number in range(5):
                create_profile(account, account.accountid, named(f"n{number}"))

    at_once(*[make] * 8)
    moments = {
        row["profileid"]: row["createdAt"]
        for row in list_profiles(ADMINISTRATOR, all=True)
    }
    assert [*moments.values()] == sorted(moments.values(), reverse=True) and len(
        moments
    ) == 40


@both
def test_plans_read_one_range_of_one_index(app, statements, model):
    """The range is on the full key of the index, and nothing is sorted."""
    appid, account = f"plan-{token_hex(4)}", {"accountid": ACCOUNT}
    made = fill_ids(model, appid, 600, **account)  # enough for an index to be worth it
    cursor = {"after": made[300]}  # in the middle: both ends are far
    for query, offset in product(({}, account, cursor, account | cursor), (0, 5)):
        statements.clear()
        rows = OPERATIONS[model](
            ADMINISTRATOR, appid=appid, limit=10, offset=offset, **query
        )
        start = 301 * ("after" in query) + offset
        assert ids(model, rows) == made[start : start + 10]
        scope = ["appid", "accountid"] if "accountid" in query else ["appid"]
        check_plan(statements[-1], "_".join([model.TABLE, *scope, "id"]), scope)


def check_plan(event, index, scope):
    explain = (
        "EXPLAIN QUERY PLAN " if db.kind == "sqlite" else "EXPLAIN FORMAT=TRADITIONAL "
    )
    with connection():
        plan = db.execute_sql(explain + event.sql, event.params)
        names = [
            column[0] for column in plan.description
        ]  # MySQL has two more than MariaDB
        (step,) = [dict(zip(names, row, strict=True)) for row in plan.fetchall()]
    if db.kind == "sqlite":
        wanted = " AND ".join([*(f"{name}=?" for name in scope), "id<?"])
        assert step["detail"].startswith("SEARCH")
        assert f"INDEX {index} (" in step["detail"] and wanted in step["detail"]
    else:
        length = len(scope) * (64 + 2) + 8  # ASCII characters and their number; an id
        assert (step["key"], step["type"], step["key_len"]) == (
            index,
            "range",
            str(length),
        )
        assert "filesort" not in (step["Extra"] or "")
