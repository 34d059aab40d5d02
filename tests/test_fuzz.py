"""Any input at all: the description's requests, raw requests, any text in every field."""

import json
import re
from collections import Counter
from datetime import date
from functools import reduce
from io import BytesIO
from operator import getitem
from random import Random
from string import punctuation
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest
from serving import ALL_FIELDS, Person

from errors import STATUSES, ServiceError
from models import Profile, Session, as_objects, public_columns
from operations import create_profile, list_profiles, list_sessions, update_profile
from validators import BOUNDED_FIELDS, CATALOGUE

ONLY_CI = "pip install -r tests/requirements.txt to run it"
hypothesis = pytest.importorskip("hypothesis", reason=ONLY_CI)
st = pytest.importorskip("hypothesis.strategies", reason=ONLY_CI)

PROFILES = ("GET", "/api/administrator/profiles")
SESSIONS = ("GET", "/api/administrator/sessions")
HEALTH = ("GET", "/health")
BODIED = (("PATCH", "/api/user/update-profile"), ("POST", "/api/user/create-profile"))
FOUR = (*BODIED, PROFILES, SESSIONS)
LENGTHS = {"FULL_NAME": (2, 30), "DISPLAY_NAME": (3, 40), "COMPANY_NAME": (4, 60)}
WHOLE = {"USER_PROFILE_FIELDS": ALL_FIELDS, "PAGE_SIZE": 3} | {
    f"{bound}_PROFILE_{name}_LENGTH": length
    for name, lengths in LENGTHS.items()
    for bound, length in zip(("MINIMUM", "MAXIMUM"), lengths, strict=True)
}
SETTINGS = pytest.mark.parametrize("settings", [{}, WHOLE], ids=["default", "whole"])
FEW_OR_MANY = pytest.mark.parametrize("examples", [4, pytest.param(250, marks=pytest.mark.long)])


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
def settings():
    """The default ones, unless a test has its own."""
    return {}


@pytest.fixture
def world(make_app, settings):
    """A deployment with an administrator and a user, who each have more than a page of rows."""
    app = make_app(**settings)
    people = [Person(app, administrator=True), Person(app)]
    with app.app_context():
        for person in people:
            made = [add_profile(person.account) for _ in range(12)]
            person.profileids = [profile["profileid"] for profile in made]
        yield SimpleNamespace(app=app, people=people, administrator=people[0], user=people[1])


def add_profile(account):
    """A profile without a value."""
    return create_profile(account, account.accountid, {}, user_profile_fields=[])


def described(app, *keys):
    """The description, or what it has at these keys."""
    return reduce(getitem, keys, app.test_client().get("/openapi.json").json)


def described_codes(app, method, path):
    """The codes of an operation as its description has them, each with its status."""
    return {
        (code, int(status))
        for status, answer in described(app, "paths", path, method.lower(), "responses").items()
        if status >= "400"
        for code in answer["content"]["application/json"]["examples"]
    }


# The description


@SETTINGS
def test_the_description_is_openapi(make_app, settings):
    validator = pytest.importorskip("openapi_spec_validator", reason=ONLY_CI)
    description = described(make_app(**settings))
    assert description["openapi"].startswith("3.1.")
    validator.OpenAPIV31SpecValidator(description).validate()


@SETTINGS
@pytest.mark.parametrize("schema", ["CreateProfile", "UpdateProfile"])
def test_the_description_shows_the_configured_fields(make_app, settings, schema):
    app = make_app(**settings)
    shown = described(app, "components", "schemas", schema)
    assert shown["required"] == sorted(app.config["SETTINGS"].user_profile_fields)
    assert set(shown["properties"]) - {"default"} == set(shown["required"])
    for name in set(BOUNDED_FIELDS) & set(shown["required"]):
        setting = name.upper().replace("-", "_")
        bounds = LENGTHS.get(setting, (1, 50)) if settings else (1, 50)
        field = shown["properties"][name]
        assert (field["minLength"], field["maxLength"]) == bounds


@SETTINGS
@pytest.mark.parametrize(("method", "path"), [PROFILES, SESSIONS])
def test_the_description_shows_the_page_size(make_app, settings, method, path):
    parameters = described(make_app(**settings), "paths", path, method.lower(), "parameters")
    defaults = {each["name"]: each["schema"].get("default") for each in parameters}
    assert (defaults["limit"], defaults["offset"]) == (settings.get("PAGE_SIZE", 10), 0)


@SETTINGS
@pytest.mark.parametrize(("method", "path"), [*FOUR, HEALTH])
def test_the_description_shows_every_code(make_app, settings, method, path):
    app = make_app(**settings)
    fields = app.config["SETTINGS"].user_profile_fields
    codes, target = {"internal-error", "database-unavailable"}, set()
    if (method, path) in FOUR:
        codes |= {"sign-in-required", "invalid-appid"}
    if (method, path) in (PROFILES, SESSIONS):
        codes |= {"administrator-required", "invalid-limit", "invalid-offset", "invalid-after"}
    if (method, path) in BODIED:
        codes |= {"invalid-account", "invalid-body", "body-too-large", "unsupported-media-type"}
        codes |= {f"invalid-{name}" for name in fields}
        codes |= {f"invalid-{name}-length" for name in set(fields) & set(BOUNDED_FIELDS)}
        name = "invalid-profileid" if method == "PATCH" else "invalid-accountid"
        target = {(name, 400), (name, 404)}
    expected = {(code, STATUSES.get(code, 400)) for code in codes} | target
    assert described_codes(app, method, path) == expected


# Schemathesis

NOT_PROMISED = [
    "negative_data_rejection",  # what is empty counts as not given, and `all` overrules the rest
    "ignored_auth",  # its requests are given a session here, and so are those of the next;
    "missing_required_header",  # test_http and the raw requests have some without
]


@pytest.mark.long
@SETTINGS
def test_any_request_of_the_description(world):
    schemathesis = pytest.importorskip("schemathesis", reason=ONLY_CI)
    engine = pytest.importorskip("schemathesis.engine", reason=ONLY_CI)
    config = schemathesis.config.SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_wsgi("/openapi.json", world.app, config=config)
    schema.config.generation.update(deterministic=True, max_examples=150)
    schema.config.checks.update(excluded_check_names=NOT_PROMISED)
    schema.hooks.hook("map_case")(lambda _, case: aimed(case, world))
    answers, failures = Counter(), []
    for event in engine.from_schema(schema).execute():
        failures += failures_of(event)
        answers.update(answers_of(event))
    assert not failures, "\n\n".join(failures[:10])
    assert sum(answers.values()) >= 800
    for method, path in FOUR:
        assert answers[method, path, 201 if method == "POST" else 200] >= 40, answers
        assert answers[method, path, 400] >= 5, answers
        assert answers[method, path, 403] >= 1, answers
    assert answers[*HEALTH, 200]


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


def failures_of(event):
    """What the checks of a scenario, or the run itself, failed with."""
    error = getattr(event, "value", None) or getattr(event, "exception", None)
    if isinstance(error, Exception):
        yield repr(error)
    recorder = getattr(event, "recorder", None)
    for checks in recorder.checks.values() if recorder else ():
        for check in checks:
            if check.failure_info:
                yield f"{check.failure_info.failure}\n{check.failure_info.code_sample}"


def answers_of(event):
    """The method, path and status of each answer in a scenario."""
    recorder = getattr(event, "recorder", None)
    for case_id, interaction in recorder.interactions.items() if recorder else ():
        path = recorder.cases[case_id].value.path
        yield interaction.request.method, path, interaction.response.status_code


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
TYPES += [
    f"multipart/form-data{rest}" for rest in ("", "; boundary=", '; boundary="', "; boundary=\xe9")
]
TYPES += [
    "application/json; charset=utf-16",
    f"{FORM_TYPE}; charset=x",
    "multipart/mixed; boundary=x",
]
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


@pytest.mark.long
@SETTINGS
@pytest.mark.parametrize(("method", "path"), FOUR)
def test_any_raw_request(world, method, path):
    person, client = world.administrator, world.app.test_client()
    codes = described_codes(world.app, method, path)
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
    """JSON of the right shape: an object, objects or null, or a code under its status."""
    assert response.content_type == "application/json"
    assert response.headers["Cache-Control"] == "no-store"
    if response.status_code >= 400:
        assert response.status_code < 500
        assert response.json == {"object": "error", "message": response.json["message"]}
        assert (response.json["message"], response.status_code) in codes
    else:
        assert signed_in
        for row in [response.json] if isinstance(response.json, dict) else response.json or []:
            model = {"profile": Profile, "session": Session}[row["object"]]
            assert list(row) == list(as_objects(model, [("",) * len(public_columns(model))])[0])


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
DATE_PARTS = (
    "1950 31 1 02 2050 50 Jan february W05 031 T Z PM st + - / . , : +14:00 10:30 tue".split()
)
DATES = st.one_of(
    st.lists(st.sampled_from([*DATE_PARTS, " "]), max_size=9).map("".join),
    st.lists(st.sampled_from(DATE_PARTS), max_size=6).map(" ".join),
    st.datetimes().map(str),
    st.builds(str.__add__, st.dates().map(str), st.text(max_size=12)),
    st.text(st.sampled_from("0123456789-/.:,+ TZWapm"), max_size=30),
)
OTHERS = st.none() | st.booleans() | st.integers() | st.floats() | st.lists(st.text(), max_size=2)
STRATEGIES = {"email": ADDRESSES, "date": DATES}


@FEW_OR_MANY
@pytest.mark.parametrize("field", CATALOGUE)
def test_any_value_is_stored_whole_or_refused_by_its_code(world, field, examples):
    value = ANY_TEXT | STRATEGIES.get(CATALOGUE[field].rule, ANY_TEXT) | OTHERS
    codes = [f"invalid-{field}", f"invalid-{field}-length"][: 1 + (field in BOUNDED_FIELDS)]
    account = world.administrator.account

    @tried(examples, value=value, creating=st.booleans())
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
        return create_profile(account, account.accountid, body, user_profile_fields=list(body))
    newest = add_profile(account)["profileid"]
    return update_profile(account, newest, body, user_profile_fields=list(body))


def assert_stored(field, value, stored):
    """The text as sent, or the date in it."""
    if field == "dob":
        assert date.fromisoformat(stored).isoformat() == stored
        assert re.search(rf"(?<!\d){stored[:4]}", value), "a year that nobody wrote"
    else:
        assert stored == ("true" if value is True else value)


@FEW_OR_MANY
@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y%m%d", "%d %B %Y", "%b %d, %Y", "%Y/%m/%d", "%m/%d/%Y", "%G-W%V-%u"]
)
def test_any_date_written_in_full_is_read(app, user, form, examples):
    @tried(examples, day=st.dates(min_value=date(1000, 1, 1)))
    def check(day):
        body = {"dob": day.strftime(form)}
        made = create_profile(user.account, user.accountid, body, user_profile_fields=["dob"])
        assert made["dob"] == day.isoformat()


@FEW_OR_MANY
@pytest.mark.parametrize("operation", [list_profiles, list_sessions])
def test_any_query_is_a_page_or_refused_by_its_code(world, operation, examples):
    person = world.administrator
    zeros = st.builds("{}{}".format, st.integers(0, 5000).map("0".__mul__), st.integers(0, 99))
    numbers = st.integers() | st.integers().map(str) | zeros | OTHERS | ANY_TEXT
    known = [person.accountid, *person.profileids, person.session["sessionid"]]
    names = st.sampled_from(known) | OTHERS | ANY_TEXT

    @tried(examples, limit=numbers, offset=numbers, after=names, accountid=names, all=OTHERS)
    def check(limit, offset, after, accountid, all):
        query = dict(limit=limit, offset=offset, after=after, accountid=accountid, all=all)
        try:
            page = operation(person.account, **query)
        except ServiceError as error:
            assert error.code.removeprefix("invalid-") in query and error.status == 400
        else:
            assert page is None or 0 < len(page) <= 24
            assert page or not all or after or accountid
