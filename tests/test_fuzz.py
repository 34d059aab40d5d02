"""Any input at all: the description's requests, raw requests, any text in every field."""

import json
import re
from collections import Counter
from datetime import date
from io import BytesIO
from random import Random
from string import punctuation
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest
from serving import ALL_FIELDS, CREATE, PROFILES, SESSIONS, UPDATE, Person

from errors import ServiceError
from models import Profile, Session
from operations import create_profile, list_profiles, list_sessions, update_profile
from validators import BOUNDED_FIELDS, CATALOGUE

ONLY_CI = "pip install -r tests/requirements.txt to run it"
hypothesis = pytest.importorskip("hypothesis", reason=ONLY_CI)
st = pytest.importorskip("hypothesis.strategies", reason=ONLY_CI)

pytestmark = pytest.mark.long
FOUR = [("PATCH", UPDATE), ("POST", CREATE), ("GET", PROFILES), ("GET", SESSIONS)]
WHOLE = {
    "USER_PROFILE_FIELDS": ALL_FIELDS,
    "PAGE_SIZE": 3,
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": 2,
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": 30,
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": 4,
    "MAXIMUM_PROFILE_COMPANY_NAME_LENGTH": 60,
}
SETTINGS = pytest.mark.parametrize("world", [{}, WHOLE], ids=["default", "whole"], indirect=True)


def tried(examples, **strategies):
    """Call the function at once with that many examples, the same ones every time."""

    def run(check):
        limits = hypothesis.settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        limits(hypothesis.given(**strategies)(check))()

    return run


@pytest.fixture
def world(make_app, request):
    """A deployment with an administrator and a user, who each have more than a page of rows."""
    app = make_app(**getattr(request, "param", {}))
    people = [Person(app, administrator=True), Person(app)]
    with app.app_context():
        for person in people:
            made = [add_profile(person.account) for _ in range(12)]
            person.profileids = [profile["profileid"] for profile in made]
        yield SimpleNamespace(app=app, people=people, administrator=people[0], user=people[1])


def add_profile(account):
    """A profile without a value."""
    return create_profile(account, account.accountid, {}, user_profile_fields=[])


# Schemathesis

NOT_PROMISED = [
    "negative_data_rejection",  # what is empty counts as not given, and `all` overrules the rest
    "ignored_auth",  # its requests are given a session here, and so are those of the next;
    "missing_required_header",  # test_http and the raw requests have some without
]


@SETTINGS
def test_any_request_of_the_description(world):
    schemathesis = pytest.importorskip("schemathesis", reason=ONLY_CI)
    engine = pytest.importorskip("schemathesis.engine", reason=ONLY_CI)
    config = schemathesis.config.SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_wsgi("/openapi.json", world.app, config=config)
    schema.config.generation.update(deterministic=True, max_examples=150)
    schema.config.checks.update(excluded_check_names=NOT_PROMISED)
    schema.hooks.hook("map_case")(lambda _, case: aimed(case, world))
    answers = Counter()
    for event in engine.from_schema(schema).execute():
        error = getattr(event, "value", None) or getattr(event, "exception", None)
        assert not isinstance(error, Exception), repr(error)
        if recorder := getattr(event, "recorder", None):
            found = [each.failure_info for checks in recorder.checks.values() for each in checks]
            assert not any(found), [f"{each.failure}\n{each.code_sample}" for each in found if each]
            for id, sent in recorder.interactions.items():
                answers[recorder.cases[id].value.path, sent.response.status_code // 100] += 1
    for _, path in FOUR:
        assert answers[path, 2] >= 40 and answers[path, 4] >= 5, answers
    assert answers["/health", 2]


def aimed(case, world):
    """The case with a session mostly, and mostly with what is there in place of what is not.

    What no schema can say is made true of all: a cursor is there, and a domain is a real one.
    """
    chance = Random(repr((case.query, case.body)))
    query, body = case.query or {}, case.body if isinstance(case.body, dict) else {}
    if re.fullmatch("[a-z]{4}_[0-9a-f]{16}", str(query.get("after"))):
        query["after"] = there(case, world.administrator, chance)["after"]
    for name, value in body.items():
        if name.endswith("-email") and isinstance(value, str):
            body[name] = re.sub("(?<=.)@.*", "@example.com", value, flags=re.DOTALL)
    if chance.random() < 0.1:
        return case
    caller = chance.choice([*world.people, world.administrator])
    case.headers = {**(case.headers or {}), "Authorization": f"Bearer {caller.token}"}
    if chance.random() < 0.2:
        return case
    owner = caller if chance.random() < 0.7 else chance.choice(world.people)
    case.headers.pop("X-Appid", None)
    known = there(case, owner, chance)
    case.query = {name: known.get(name, value) for name, value in query.items()}
    return case


def there(case, owner, chance):
    """What exists for each parameter that names something of its owner."""
    known = {"accountid": owner.accountid, "profileid": chance.choice(owner.profileids)}
    known["after"] = owner.session["sessionid"] if "sessions" in case.path else known["profileid"]
    return known


# Raw requests

BYTES = st.binary(max_size=200) | st.text().map(str.encode)
HEADER = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=80)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(SCALAR, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
GOOD = {name: "x@example.com" for name in CATALOGUE} | {"dob": "1950-01-31"}
NAMES = st.sampled_from([*CATALOGUE, "default", 'phone"; filename="a', ""])
OBJECTS = st.dictionaries(NAMES, JSON, max_size=3).map(lambda some: json.dumps(GOOD | some))
PAIRS = st.lists(st.tuples(NAMES, BYTES), max_size=4).map(
    lambda some: [*((name, value.encode()) for name, value in GOOD.items()), *some]
)
FORM_TYPE, FORMS = "application/x-www-form-urlencoded", PAIRS.map(lambda p: urlencode(p).encode())
MULTIPART_TYPE, MULTIPARTS = "multipart/form-data; boundary=x", PAIRS.map(lambda p: multipart(p))
TYPES = ["application/json", FORM_TYPE, MULTIPART_TYPE, "text/plain", "", "application/a+json"]
TYPES += ["application/json; charset=utf-16", f"{FORM_TYPE}; charset=x", "multipart/mixed"]
ODD = ("", "; boundary=", '; boundary="', "; boundary=\xe9")
TYPES += [f"multipart/form-data{rest}" for rest in ODD]
WHOLE_BODIES = OBJECTS.map(str.encode) | FORMS | MULTIPARTS | JSON.map(json.dumps).map(str.encode)
ENDS = st.sampled_from([b"", b"--x", b"--x--\r\n", b"\x00", b" " * 70_000])
CUT_BODIES = st.builds(lambda body, cut, end: body[:cut] + end, WHOLE_BODIES, st.integers(), ENDS)
TYPES_AND_BODIES = st.one_of(
    st.tuples(st.just("application/json"), OBJECTS.map(str.encode)),
    st.tuples(st.just(FORM_TYPE), FORMS),
    st.tuples(st.just(MULTIPART_TYPE), MULTIPARTS),
    st.tuples(st.sampled_from(TYPES), WHOLE_BODIES | CUT_BODIES | BYTES),
    st.tuples(HEADER, WHOLE_BODIES),
)


def multipart(pairs):
    """A multipart body with the boundary x, whatever the names and values."""
    part = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    return b"".join(part % (name.encode(), value) for name, value in pairs) + b"--x--\r\n"


def mostly(good, other):
    """The good value four times in five."""
    return st.integers(0, 4).flatmap(lambda chance: other if chance == 4 else st.just(good))


@SETTINGS
@pytest.mark.parametrize(("method", "path"), FOUR)
def test_any_raw_request(world, method, path):
    person, client = world.administrator, world.app.test_client()
    description = world.app.test_client().get("/openapi.json").json
    answers = description["paths"][path][method.lower()]["responses"].items()
    contents = [(status, each["content"]["application/json"]) for status, each in answers]
    codes = {(code, int(status)) for status, c in contents for code in c.get("examples", [])}
    own = [person.accountid, world.user.accountid, *person.profileids, person.session["sessionid"]]
    numbers = st.integers(0, 10**22).map(str) | st.integers(0, 5000).map(lambda n: "0" * n + "1")
    values = st.sampled_from(["", *own]) | numbers | BYTES
    names = st.sampled_from(["accountid", "profileid", "limit", "offset", "after", "all"])
    query = st.lists(st.tuples(names, values), max_size=3).map(lambda q: urlencode(q).encode())
    target = f"accountid={person.accountid}&profileid={own[2]}&".encode()
    statuses = Counter()

    @tried(
        300,
        query=mostly(target, st.just(b"")).flatmap(lambda b: (query | BYTES).map(b.__add__)),
        authorization=mostly(f"Bearer {person.token}", HEADER | HEADER.map("Bearer {}".format)),
        appid=mostly(person.appid, HEADER),
        type_and_body=TYPES_AND_BODIES,
        length=mostly(None, st.integers(-1, 300).map(str) | HEADER),
    )
    def check(query, authorization, appid, type_and_body, length):
        content_type, body = type_and_body
        sent = {"HTTP_AUTHORIZATION": authorization, "HTTP_X_APPID": appid}
        sent |= {"CONTENT_TYPE": content_type, "wsgi.input": BytesIO(body)}
        sent |= {"CONTENT_LENGTH": str(len(body)) if length is None else length}
        sent |= {"QUERY_STRING": quote(query, safe=punctuation)}  # as every server hands it on
        response = client.open(path, method=method, environ_overrides=sent)
        statuses[response.status_code] += 1
        assert_answer(response, codes, authorization == f"Bearer {person.token}")

    assert statuses[201 if method == "POST" else 200] >= 20, statuses
    assert statuses[400] >= 20 and statuses[401] >= 20, statuses


def assert_answer(response, codes, signed_in):
    """A line of JSON of the right shape: an object, objects or null, or a code under its status."""
    assert response.data.find(b"\n") == len(response.data) - 1
    assert response.content_type == "application/json"
    assert response.headers["Cache-Control"] == "no-store"
    if response.status_code >= 400:
        assert response.status_code < 500
        assert response.json == {"object": "error", "message": response.json["message"]}
        assert (response.json["message"], response.status_code) in codes
    else:
        assert signed_in
        for row in [response.json] if isinstance(response.json, dict) else response.json or []:
            assert list(row) == {"profile": Profile, "session": Session}[row["object"]].PROPERTIES


# In-process

ANY_TEXT = st.one_of(
    st.text(),
    st.text(st.characters()),  # lone surrogates too
    st.text(st.sampled_from("\x00\u200b\u202e\ufeff\uffff\U0010ffff\u0301ß'\"\\%_\r\n 👩‍🚀")),
    st.builds(str.__mul__, st.text(min_size=1, max_size=2), st.integers(1, 30_000)),
)
ADDRESSES = st.one_of(
    st.emails(),
    st.builds("{}@{}".format, ANY_TEXT, ANY_TEXT),
    st.builds("{}{}".format, st.emails(), st.text(max_size=3)),
    st.text(st.sampled_from('a.@-"\\()[]<>:;, é١xn')),
)
WAYS = "%Y-%m-%d|%Y%m%d|%G-W%V-%u|%GW%V%u|%Y-%j|%Y%j|%Y/%m/%d|%m/%d/%Y|%d %B %Y|%d-%b-%Y".split("|")
WAYS += ["the %dth of %B, %Y", "%B %d, %Y", "%b. %d %Y", "%A, %B %d, %Y", "%a %d %b %Y"]
TIMES = [
    "",
    "T10:30:00.5Z",
    "T1030+0100",
    " 10:30 PM",
    " 10:30:00 GMT+0100 (Central Standard Time)",
]
PARTS = "1950 31 1 02 2050 Jan february W05 031 T Z PM st + - / . , : +14:00 10:30 tue".split()
DAYS = st.dates(min_value=date(1000, 1, 2))
FORMATS = [way + time for way in WAYS for time in TIMES]
WRITTEN = st.builds(date.strftime, DAYS, st.sampled_from(FORMATS))
DATES = st.one_of(
    st.lists(st.sampled_from([*PARTS, " "]), max_size=9).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=6).map(" ".join),
    st.datetimes().map(str),
    st.builds("{}{}".format, WRITTEN, st.text(max_size=3) | st.sampled_from(PARTS)),
    st.builds("{}{}".format, st.sampled_from(PARTS), WRITTEN),
    st.text(st.sampled_from("0123456789-/.:,+ TZWapm"), max_size=30),
)
OTHERS = st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text(), max_size=2)
STRATEGIES = {"email": ADDRESSES, "date": DATES}


@pytest.mark.parametrize("field", CATALOGUE)
def test_any_value_is_stored_whole_or_refused_by_its_code(world, field):
    value = ANY_TEXT | STRATEGIES.get(CATALOGUE[field].rule, ANY_TEXT) | OTHERS
    codes = [f"invalid-{field}", f"invalid-{field}-length"][: 1 + (field in BOUNDED_FIELDS)]
    account = world.administrator.account

    @tried(250, value=value, creating=st.booleans())
    def check(value, creating):
        try:
            made = store(account, {field: value}, creating)
        except ServiceError as error:
            assert error.code in codes and error.status == 400
        else:
            assert list_profiles(account, limit=1) == [made]
            assert_stored(field, value, made[CATALOGUE[field].property])


def store(account, body, creating):
    """A new profile, or the newest one updated, by the one field of the body."""
    if creating:
        return create_profile(account, account.accountid, body, user_profile_fields=[*body])
    newest = add_profile(account)["profileid"]
    return update_profile(account, newest, body, user_profile_fields=[*body])


def assert_stored(field, value, stored):
    """The text as sent, or the day that it begins with, with nothing but a time behind it."""
    if field == "dob":
        day = date.fromisoformat(stored)
        ways = {plain(day.strftime(way)).removeprefix(f"{day:%a} ".lower()) for way in WAYS}
        assert re.fullmatch(rf"({day:%a} )?({'|'.join(ways)})( (t )?[0-9].*)?", plain(value), re.I)
    else:
        assert stored == ("true" if value is True else value)


def plain(text):
    """A date's numbers without leading zeros, and its names as three letters."""
    words = re.findall("[a-z]+|[0-9]+|\\w", text.lower())
    left = [each for each in words if each not in ("the", "of", "st", "nd", "rd", "th")]
    return " ".join(each.lstrip("0") or "0" if each.isdigit() else each[:3] for each in left)


def test_any_day_is_read_in_any_way_that_the_readme_has(user):
    @tried(2_000, day=DAYS, way=st.sampled_from(FORMATS))
    def check(day, way):
        body = {"dob": day.strftime(way)}
        made = create_profile(user.account, user.accountid, body, user_profile_fields=["dob"])
        assert made["dob"] == day.isoformat()


@pytest.mark.parametrize("operation", [list_profiles, list_sessions])
def test_any_query_is_a_page_or_refused_by_its_code(world, operation):
    person = world.administrator
    zeros = st.builds("{}{}".format, st.integers(0, 5000).map("0".__mul__), st.integers(0, 99))
    numbers = st.integers() | st.integers().map(str) | zeros | OTHERS | ANY_TEXT
    known = [person.accountid, *person.profileids, person.session["sessionid"]]
    names = st.sampled_from(known) | OTHERS | ANY_TEXT

    @tried(250, limit=numbers, offset=numbers, after=names, accountid=names, all=OTHERS)
    def check(limit, offset, after, accountid, all):
        query = dict(limit=limit, offset=offset, after=after, accountid=accountid, all=all)
        try:
            page = operation(person.account, **query)
        except ServiceError as error:
            assert error.code.removeprefix("invalid-") in query and error.status == 400
        else:
            assert page is None or 0 < len(page) <= 24
            assert page or not all or after or accountid
