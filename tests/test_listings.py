"""The administrators' listings: their queries, links, walks, long answers and plans."""

import re
import time
from functools import partial
from itertools import cycle
from secrets import token_hex
from types import SimpleNamespace

import pytest
from peewee import OperationalError
from service import (
    PROFILES,
    SESSIONS,
    assert_error,
    at_once,
    fill,
    named,
    new_row,
    sign_in,
)
from werkzeug.test import create_environ

from accounts import delete_account, list_accounts
from database import db
from errors import ServiceError
from models import EMAILS, Account, Profile, Session
from profiles import create_profile, list_own_profiles, list_profiles
from sessions import list_own_sessions, list_sessions

ACCOUNTS = "/api/administrator/accounts"
LARGEST = 2**63 - 1
both = pytest.mark.parametrize(
    "model, name", [(Profile, "profile"), (Session, "session")]
)


def position(profile):
    """Where a profile is in a list."""
    return Profile.get(Profile.profileid == profile["profileid"]).id


def walk(client, path):
    """The pages of a listing, from link to link."""
    while path:
        response = client.get(path)
        assert response.status_code == 200, response.text
        yield response.json
        link = response.headers.get("Link")
        path = link and re.fullmatch('<(.+)>; rel="next"', link)[1]


@pytest.mark.parametrize(
    "query, first, end",
    [
        ("limit=&offset=&after=&all=", 0, 10),
        ("limit=03&offset=4", 4, 7),
        ("limit=0", 0, 0),
        (f"limit={LARGEST}&offset=3", 3, 15),
        (f"limit={LARGEST}&offset={LARGEST}", 0, 0),
        ("all", 0, 10),
        ("all=false&limit=x&offset=-1", 0, 15),
        ("after={1}&limit=2&offset=3", 5, 7),
        ("after={1}&all=1", 2, 15),
        ("after={14}", 0, 0),
    ],
)
def test_a_query_finds_a_part_of_15_rows(administrator, query, first, end):
    rows = fill(Profile, administrator.appid, 15)  # three or four to a millisecond
    ids = [row["profileid"] for row in rows]
    response = administrator.get(f"{PROFILES}?{query.format(*ids)}")
    assert response.json == (rows[first:end] or None)
    assert ("Link" in response.headers) == (end not in (0, 15))


@pytest.mark.parametrize(
    "query",
    [
        "limit=-1",
        "limit=x&offset=x&after=x",
        "limit=٣",
        "limit=1.0",
        f"limit={LARGEST + 1}",
        pytest.param(f"limit={'9' * 5000}", id="5000-digits"),
        pytest.param(f"limit={'0' * 4999}1", id="5000-padded-digits"),
        "offset=0x1&after=x",
        f"offset={LARGEST + 1}",
        "after=prof_0123456789abcdef",
        "after=sess_0123456789abcdef",
        "after=x&all=1",
    ],
)
def test_a_query_is_refused_for_the_first_name_in_it(administrator, query):
    name = query.partition("=")[0]
    assert_error(administrator.get(f"{PROFILES}?{query}"), 400, f"invalid-{name}")


@pytest.mark.parametrize(
    "name, value",
    [
        ("limit", True),
        ("offset", []),
        ("after", 5),
    ],
)
def test_an_argument_that_is_refused_in_this_process(app, name, value):
    """A caller without an appid has rights in each application."""
    caller = SimpleNamespace(administrator=True)
    with pytest.raises(ServiceError, match=f"^invalid-{name}$"):
        list_profiles(caller, appid="elsewhere", **{name: value})


@pytest.mark.parametrize("name", ["profile", "session", "account"])
def test_a_listing_ends_with_its_application(administrator, user, name):
    model = Session if name == "session" else Profile
    (row,) = fill(model, "elsewhere", 1)
    path = f"/api/administrator/{name}s"
    own = fill(model, administrator.appid, 1)[0]["accountid"]
    others = [row["accountid"], "acct_x", own.upper(), f"{own}%20", f"{own}%00"]
    for accountid in others:
        response = administrator.get(f"{path}?all=1&accountid={accountid}")
        assert response.data == b"null\n"
    after = row[f"{name}id"]
    if name == "account":  # its position is its id
        after = after.upper()
    assert_error(administrator.get(f"{path}?after={after}"), 400, "invalid-after")
    assert_error(user.get(f"{path}?limit=x"), 403, "administrator-required")


@both
def test_after_is_a_row_of_the_account_that_is_listed(administrator, model, name):
    path = f"/api/administrator/{name}s"
    (own,) = fill(model, administrator.appid, 1)
    (other,) = fill(model, administrator.appid, 1)
    for row, status in ((own, 200), (other, 400)):
        query = f"accountid={own['accountid']}&after={row[f'{name}id']}"
        assert administrator.get(f"{path}?{query}").status_code == status
        assert administrator.get(f"{path}?{query}&all=1").status_code == status


@both
def test_a_walk_beside_deletions(administrator, model, name):
    """Even of the row that the next page comes after."""
    rows = fill(model, administrator.appid, 7)
    accountid = rows[0]["accountid"]
    key = f"{name}id"
    seen = []
    path = f"/api/administrator/{name}s?limit=2&accountid={accountid}"
    for page in walk(administrator, path):
        seen += page
        model.delete().where(getattr(model, key) == page[-1][key]).execute()
    assert seen == rows
    gone = f"{path}&after={rows[-1][key]}"
    assert_error(administrator.get(gone), 400, "invalid-after")


@pytest.mark.parametrize("after", ["-1", "+1", "1.0", "²", "9" * 20, "9" * 5_000])
def test_a_position_that_is_refused(administrator, after):
    for path in (PROFILES, SESSIONS, ACCOUNTS):
        response = administrator.get(path, query_string={"after": after})
        assert_error(response, 400, "invalid-after")


def test_any_position_is_one_of_the_own_rows(administrator, user):
    """A position that is another row's shows nothing of it."""
    fill(Profile, administrator.appid, 2)
    rows = fill(Profile, user.appid, 1, accountid=user.accountid)
    fill(Profile, administrator.appid, 2)
    path = f"/api/user/profiles?accountid={user.accountid}"
    for after in (position(rows[0]) + 1, LARGEST):
        assert user.get(f"{path}&after={after}").json == rows
    for after in (position(rows[0]), 0, "0" * 19):
        assert user.get(f"{path}&after={after}").json is None


@pytest.fixture
def accounts(administrator):
    """Seven, as they are listed. Three have a default profile."""
    for number in range(6):
        user = sign_in(administrator.application)
        user.create(named("other"))
        if number % 2:
            user.create(named("default", default="true"))
    listed = administrator.get(f"{ACCOUNTS}?all=1").json
    assert len(listed) == 7
    return listed


def test_the_accounts_have_their_default_profiles(administrator, accounts):
    """They ascend by their ids. One account is listed as GET /api/user/account does."""
    ids = [account["accountid"] for account in accounts]
    assert ids == sorted(ids)
    profiles = [account["profile"] for account in accounts if account["profile"]]
    assert [profile["fullName"] for profile in profiles] == ["default"] * 3
    own = f"?accountid={administrator.accountid}"
    shown = administrator.get(f"/api/user/account{own}").json
    assert administrator.get(ACCOUNTS + own).json == [shown]


@pytest.mark.parametrize(
    "query, first, end",
    [
        ("limit=5", 0, 5),
        ("after={2}&limit=1&offset=1", 4, 5),
        ("after={2}&all=1", 3, 7),
        ("after={6}", 0, 0),
    ],
)
def test_a_query_finds_a_part_of_seven_accounts(
    administrator, accounts, query, first, end
):
    ids = [account["accountid"] for account in accounts]
    response = administrator.get(f"{ACCOUNTS}?{query.format(*ids)}")
    assert response.json == (accounts[first:end] or None)
    assert ("Link" in response.headers) == (end not in (0, 7))


def test_a_walk_of_accounts_beside_deletions(administrator, accounts):
    """Even of the account that the next page comes after."""
    pages = walk(administrator, f"{ACCOUNTS}?limit=1")
    seen = []
    for page in pages:
        seen += page
        if not page[0]["administrator"]:
            delete_account(administrator.caller, page[0]["accountid"])
    assert seen == accounts


# A search by e-mail

PREFIX = "x" * 64  # as much of an address as an index on MySQL holds
ADDRESSES = [
    "ada@example.com",
    "Ada@Example.com",
    "JOSÉ@example.com",
    "jose@example.com",
    "blank@example.com ",
    "blank@example.com",
    "mike@example.com",
    "mİke@example.com",
    "a_b%@example.com",
    "axbx@example.com",
    "a\\'b@example.com",
    "a\0b@example.com",
    "a\0c@example.com",
    f"{PREFIX}a@example.com",
    f"{PREFIX}b@example.com",
    f"{PREFIX * 1_000}a@example.com",
    f"{PREFIX * 1_000}b@example.com",
]


def set_email(row, column, address):
    """Let a row that fill() stored have the address, instead of its own."""
    row[column] = address
    changed = Profile.update({column: address})
    changed.where(Profile.profileid == row["profileid"]).execute()


@pytest.mark.parametrize(
    "email, found",
    [
        ("ADA@example.COM", ["ada@example.com", "Ada@Example.com"]),
        ("josÉ@EXAMPLE.com", ["JOSÉ@example.com"]),
        ("josé@example.com", []),
        ("JOSE@example.com", ["jose@example.com"]),
        ("mike@example.com", ["mike@example.com"]),
        ("blank@example.com ", ["blank@example.com "]),
        ("Blank@example.com", ["blank@example.com"]),
        ("A_B%@example.com", ["a_b%@example.com"]),
        ("A\\'b@example.com", ["a\\'b@example.com"]),
        ("A\0B@example.com", ["a\0b@example.com"]),
        (f"{PREFIX}A@example.com", [f"{PREFIX}a@example.com"]),
        pytest.param(f"{PREFIX * 1_000}B@example.com", ADDRESSES[-1:], id="64-KB"),
        (PREFIX, []),
    ],
)
def test_profiles_by_email(administrator, email, found):
    """Only the case of ASCII letters is ignored. Either column has the address."""
    rows = fill(Profile, administrator.appid, len(ADDRESSES))
    columns = cycle(EMAILS)
    for row, column, address in zip(rows, columns, ADDRESSES, strict=False):
        set_email(row, column, address)
    response = administrator.get(PROFILES, query_string={"email": email})
    expected = [row for row in rows if {*found} & {row[name] for name in EMAILS}]
    assert len(expected) == len(found)
    assert response.json == (expected or None)
    assert list_profiles(administrator.caller, email=email) == response.json


@pytest.fixture
def ada(administrator):
    """The rows with one address: in either column, in both, and of two accounts.

    The index of MySQL, which ignores accents, also finds others.
    """
    rows = fill(Profile, administrator.appid, 12)
    rows = fill(Profile, administrator.appid, 4) + rows
    for row in rows:
        set_email(row, "displayEmail", "áda@example.com")
    for row in rows[1::2]:
        set_email(row, "contactEmail", "Ada@example.com")
    for row in rows[::4]:
        set_email(row, "displayEmail", "aDA@example.com")
    set_email(rows[3], "displayEmail", "ada@example.com")
    return [row for number, row in enumerate(rows) if number % 2 or number % 4 == 0]


@pytest.mark.parametrize(
    "query, first, end",
    [
        ("", 0, 10),
        (f"limit={LARGEST}&offset=3", 3, 12),
        (f"limit={LARGEST}&offset={LARGEST}", 0, 0),
        ("after={2[profileid]}&limit=4&offset=1", 4, 8),
        ("after={11[profileid]}", 0, 0),
        ("all=1&after={4[profileid]}", 5, 12),
        ("accountid={0[accountid]}&offset=1", 1, 3),
        ("accountid={3[accountid]}&after={4[profileid]}&limit=3", 5, 8),
    ],
)
def test_a_query_finds_a_part_of_12_rows_by_email(
    administrator, ada, query, first, end
):
    query = query.format(*ada)
    response = administrator.get(f"{PROFILES}?email=ADA@example.com&{query}")
    assert response.json == (ada[first:end] or None)
    assert ("Link" in response.headers) == (end not in (0, 3, 12))


@pytest.mark.parametrize(
    "email",
    ["", "\udcff", 5, b"ada@example.com"],
)
def test_an_empty_address_and_what_is_none_find_nobody(administrator, email):
    """Numbers are checked all the same."""
    fill(Profile, administrator.appid, 2)
    Profile.update(contactEmail="").execute()
    assert list_profiles(administrator.caller, email=email) is None
    with pytest.raises(ServiceError, match="^invalid-limit$"):
        list_profiles(administrator.caller, email=email, limit="x")
    if email == "":
        assert administrator.get(f"{PROFILES}?email=").json is None


@pytest.mark.parametrize("similar", ["eve", "Éve", "ève"])
def test_a_search_among_many_similar_addresses_reads_none_of_them(
    administrator, monkeypatch, similar
):
    """Any user can store them, and MySQL's index ignores accents."""
    rows = fill(Profile, administrator.appid, 1_001)
    others = Profile.update(contactEmail=f"{similar}@example.com")
    others.where(Profile.appid == administrator.appid).execute()
    set_email(rows[-1], "contactEmail", "évE@example.com")
    caller, statements = administrator.caller, []
    monkeypatch.setattr(db.obj, "query_hooks", [statements.append])
    assert list_profiles(caller, email="éVe@example.com", limit=1) == [rows[-1]]
    assert len(statements) == 1
    similar = list_profiles(caller, email=f"{similar}@Example.com", offset=999)
    assert [profile["profileid"] for profile in similar] == [rows[999]["profileid"]]


@pytest.mark.parametrize(
    "path, names",
    [
        (PROFILES, "account id active appid caller x"),
        (SESSIONS, "account email listing"),
        (ACCOUNTS, "account email active"),
        ("/api/user/profiles?accountid=OWN", "active email x"),
        ("/api/user/sessions?accountid=OWN", "email x"),
    ],
)
def test_a_parameter_that_a_list_does_not_have_is_refused(administrator, path, names):
    """Otherwise a misspelled one would list the rows of all users."""
    path = path.replace("OWN", administrator.accountid)
    for name in names.split():
        for more in ("limit=1", "all=1", "limit=x"):
            query = f"{'&' if '?' in path else '?'}{name}=&{more}"
            response = administrator.get(path + query)
            assert_error(response, 400, "invalid-parameter")
            assert response.json["errors"] == {name: "invalid-parameter"}


@pytest.mark.parametrize("path", [PROFILES, "/api/user/sessions"])
def test_unknown_parameters_are_refused_before_rights_are_checked(client, user, path):
    query = {"limitt": "1", "Active": "1"}
    assert_error(client.get(path, query_string=query), 401, "sign-in-required")
    response = user.get(path, query_string=query)
    assert_error(response, 400, "invalid-parameter")
    assert response.json["errors"] == dict.fromkeys(query, "invalid-parameter")


@pytest.mark.parametrize("name", ["limitt", "Active"])
@pytest.mark.parametrize(
    "operation",
    [list_profiles, list_sessions, list_accounts, list_own_profiles, list_own_sessions],
)
def test_an_unknown_argument_is_a_type_error_in_this_process(
    administrator, operation, name
):
    with pytest.raises(TypeError, match=name):
        operation(administrator.caller, accountid=administrator.accountid, **{name: 1})


@pytest.mark.parametrize("operation", [list_profiles, list_sessions, list_accounts])
def test_an_empty_accountid_lists_nobody(administrator, operation):
    """It is a variable of the client's that has no value; None is no filter."""
    caller = administrator.caller
    name = operation.__name__.removeprefix("list_")
    create_profile(caller, caller.accountid, named("Ada"))
    for query in ("accountid=", "accountid=&all=1"):
        response = administrator.get(f"/api/administrator/{name}?{query}")
        assert (response.status_code, response.json) == (200, None)
    assert operation(caller, accountid="") is None
    page = operation(caller, accountid=None)
    assert (len(page), page.has_more) == (1, False)


@pytest.mark.parametrize("column", EMAILS)
def test_a_search_by_email_reads_few_rows(administrator, database_url, column):
    """Of an account that has very many, beside an application full of the address."""
    elsewhere = token_hex(8)
    fill(Profile, elsewhere, 1_000)
    shared = Profile.update({column: "ada@example.com"})
    shared.where(Profile.appid == elsewhere).execute()
    rows = fill(Profile, administrator.appid, 1_000)
    set_email(rows[-7], column, "Ada@example.com")
    accountid = rows[0]["accountid"]
    for query in ({}, {"all": 1}, {"accountid": accountid}, {"limit": 50}):
        query["email"] = "ADA@example.com"
        read = partial(list_profiles, administrator.caller, **query)
        assert read() == [rows[-7]]
        assert rows_read(database_url, read, "next") < 100
        assert rows_read(database_url, read, "prev") < 100


def test_the_link_keeps_the_address(administrator):
    """The cursor need not have the address, which may change during a walk."""
    rows = fill(Profile, administrator.appid, 3)
    for row in rows:
        set_email(row, "displayEmail", "ẞΣİ+X@example.com")
    query = f"accountid={rows[0]['accountid']}&email=%E1%BA%9E%CE%A3%C4%B0%2Bx%40"
    response = administrator.get(f"{PROFILES}?{query}example.com&limit=2")
    assert response.json == rows[:2]
    link = f"{PROFILES}?{query}example.com&limit=2&after={position(rows[1])}"
    assert response.headers["Link"] == f'<{link}>; rel="next"'
    set_email(rows[1], "displayEmail", None)
    assert administrator.get(link).json == rows[2:]


def test_the_link_has_what_the_next_page_needs(administrator):
    """Neither what is empty, nor the offset and the cursor of this page."""
    rows = fill(Profile, administrator.appid, 5)
    accountid, after = rows[0]["accountid"], rows[0]["profileid"]
    query = f"all=&offset=1&after={after}&limit=1&accountid={accountid}"
    response = administrator.get(f"{PROFILES}?{query}")
    assert response.json == [rows[2]]
    rest = f"limit=1&accountid={accountid}&after={position(rows[2])}"
    assert response.headers["Link"] == f'<{PROFILES}?{rest}>; rel="next"'


@pytest.mark.parametrize(
    "mounted, stripped, prefix",
    [
        ("", "/profiles", "/profiles"),
        ("", "/profiles/", "/profiles"),
        ("", "/", ""),
        ("", "//evil.example", "/evil.example"),
        ("", "/a%20b", "/a%20b"),
        ("", '/"><é', "/%22%3E%3C%C3%A9"),
        ("/shop", "/x", "/shop"),
        ("/a%20é", "", "/a%20%C3%A9"),
    ],
)
def test_the_link_begins_with_the_prefix(administrator, mounted, stripped, prefix):
    """That of a host program, in which it is mounted, or one that a proxy strips."""
    fill(Profile, administrator.appid, 2)
    base = f"http://localhost{mounted}"
    headers = {"X-Forwarded-Prefix": stripped}
    response = administrator.get(f"{PROFILES}?limit=1", base_url=base, headers=headers)
    assert response.headers["Link"].startswith(f"<{prefix}{PROFILES}?limit=1&after=")


def test_profiles_keep_their_order_whatever_the_clock_does(
    administrator, user, monkeypatch
):
    """It stands still, and turns back: only a patch can do that."""
    now = time.time_ns()
    made = []
    for moment in (now, now, now - 10**9):
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        made.append(user.create(named("name")).json)
    assert administrator.profiles() == made[::-1]
    moments = [profile["createdAt"] for profile in made]
    assert moments == sorted(moments)


@pytest.mark.parametrize("path", [PROFILES, ACCOUNTS])
def test_a_page_is_one_statement(administrator, monkeypatch, path):
    fill(Profile, administrator.appid, 251)
    for _ in range(3):
        sign_in(administrator.application)
    statements = []
    monkeypatch.setattr(db.obj, "query_hooks", [statements.append])
    response = administrator.get(f"{path}?limit={250 if path == PROFILES else 3}")
    assert "Link" in response.headers
    assert len(statements) == 2  # the first finds the caller


@pytest.mark.parametrize("query", ["limit=40", "limit=120", "all=1"])
def test_a_walk_beside_commits(administrator, monkeypatch, query):
    """It shows each row that was there once, whatever is committed between them."""
    rows = fill(Profile, administrator.appid, 250)
    others = []
    for row in rows[::25]:
        moment = int(row["phone"].split()[1]) + 1
        others.append(new_row(Profile, moment, row["appid"], row["accountid"]))

    def commit_another(event):
        if "ORDER BY" in event.sql:
            at_once(Profile.insert(others.pop()).execute)

    monkeypatch.setattr(db.obj, "query_hooks", [commit_another])
    pages = walk(administrator, f"{PROFILES}?{query}")
    seen = [row["profileid"] for page in pages for row in page]
    assert len(set(seen)) == len(seen) > 250
    ids = [row["profileid"] for row in rows]
    assert [each for each in seen if each in ids] == ids


def test_all_is_read_in_batches_of_100(administrator, monkeypatch):
    """Each when it is sent: more rows take no more memory."""
    fill(Profile, administrator.appid, 250)
    response = administrator.get(f"{PROFILES}?all=1")
    statements = []
    monkeypatch.setattr(db.obj, "query_hooks", [statements.append])
    for count, part in enumerate(response.iter_encoded()):
        assert len(statements) == min(count, 2)
        assert part.count(b'"updatedAt"') == [100, 100, 50, 0][count]


def test_all_ends_where_the_rest_was_deleted(administrator):
    rows = fill(Profile, administrator.appid, 101)
    response = administrator.get(f"{PROFILES}?all=1")
    Profile.delete().where(Profile.profileid == rows[-1]["profileid"]).execute()
    assert response.json == rows[:-1]


@pytest.mark.parametrize(
    "error, status, code",
    [
        (OperationalError, 503, "database-unavailable"),
        (OSError, 500, "internal-error"),
    ],
)
def test_all_whose_rows_cannot_be_read(
    administrator, monkeypatch, caplog, error, status, code
):
    """Without the first rows it is an error; later it breaks off, as the log shows."""
    text = "5ec4e7"

    def fail(event):
        if "ORDER BY" in event.sql:
            raise error(text)

    fill(Profile, administrator.appid, 101)
    environ = create_environ(f"{PROFILES}?all=1", headers=administrator.headers)
    parts = iter(administrator.application(environ, lambda *_: None))
    assert next(parts).startswith(b"[{")
    monkeypatch.setattr(db.obj, "query_hooks", [fail])
    with pytest.raises(error):
        next(parts)
    assert environ["profiles.code"] == code
    assert (db.expired_at > 0) == (code == "database-unavailable")
    assert len(caplog.records) == 1
    assert ("Traceback" in caplog.text) == (code == "internal-error")
    assert ("5ec4e7" in caplog.text) == (error is OSError)
    assert_error(administrator.get(f"{PROFILES}?all=1"), status, code)


def rows_read(database_url, call, direction="prev"):
    """How many rows the database reads for a call, on the connection of this thread.

    MySQL reads "prev" for the newest first, and "next" for accounts.
    """
    if database_url.startswith("sqlite"):
        calls = []
        connection = db.connection()
        connection.set_progress_handler(lambda: calls.append(1), 30)  # steps: a row
        call()
        connection.set_progress_handler(None, 30)
        return len(calls)
    status = f"SHOW SESSION STATUS LIKE 'Handler_read_{direction}'"
    ((_, before),) = db.execute_sql(status)
    call()
    ((_, after),) = db.execute_sql(status)
    return int(after) - int(before)


@both
@pytest.mark.parametrize("of_account", [True, False])
def test_a_page_in_the_middle_reads_few_rows(
    administrator, database_url, model, name, of_account
):
    """Between its rows are 200 of others, and 200 rows are newer."""
    appid = administrator.appid
    accountid = fill(model, appid, 10)[0]["accountid"]
    fill(model, appid if of_account else "elsewhere", 200)
    after = fill(model, appid, 6, accountid=accountid)[0][f"{name}id"]
    fill(model, appid, 200, accountid=accountid)
    operation = list_profiles if model is Profile else list_sessions
    caller = administrator.caller
    query = {"limit": 15, "after": after}
    query["accountid"] = accountid if of_account else None
    read = partial(operation, caller, appid=appid, **query)
    assert len(read()) == 15
    assert 10 <= rows_read(database_url, read) < 100


def test_a_page_of_accounts_in_the_middle_reads_few_rows(administrator, database_url):
    """Between its rows are accounts of another application, and 200 are before it."""
    appid = administrator.appid
    ids = [f"acct_{number:08}{token_hex(4)}" for number in range(400)]
    for owner, accountids in (("elsewhere", ids[1::2]), (appid, ids[::2])):
        rows = [new_row(Account, 1, owner, accountid) for accountid in accountids]
        Account.insert_many(rows).execute()
    caller = administrator.caller
    read = partial(list_accounts, caller, appid=appid, limit=15, after=ids[300])
    assert len(read()) == 15
    assert 10 <= rows_read(database_url, read, "next") < 100
