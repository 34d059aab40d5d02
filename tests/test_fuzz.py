"""Any input at all: the description's requests, and any text in every field."""

import re
from collections import Counter
from datetime import date
from random import Random
from types import SimpleNamespace

import pytest
from serving import ALL_FIELDS, CREATE, PROFILES, SESSIONS, UPDATE, Person

from errors import ServiceError
from operations import create_profile, list_profiles, update_profile
from validators import BOUNDED_FIELDS, CATALOGUE

ONLY_CI = "pip install -r tests/requirements.txt to run it"
hypothesis = pytest.importorskip("hypothesis", reason=ONLY_CI)
st = pytest.importorskip("hypothesis.strategies", reason=ONLY_CI)

pytestmark = pytest.mark.long
FOUR = [("PATCH", UPDATE), ("POST", CREATE), ("GET", PROFILES), ("GET", SESSIONS)]
WHOLE = {"USER_PROFILE_FIELDS": ALL_FIELDS, "MAXIMUM_PROFILE_COMPANY_NAME_LENGTH": 60}
SETTINGS = pytest.mark.parametrize(
    "world", [{}, WHOLE], ids=["default", "whole"], indirect=True
)


def tried(examples, **strategies):
    """Call the function at once with that many examples, the same ones every time."""
    options = {"deadline": None, "derandomize": True, "database": None}
    options["suppress_health_check"] = list(hypothesis.HealthCheck)
    limits = hypothesis.settings(max_examples=examples, **options)
    return lambda check: limits(hypothesis.given(**strategies)(check))()


@pytest.fixture
def world(make_app, request):
    """A deployment with an administrator and a user, who each have more than a page of rows."""
    app = make_app(**getattr(request, "param", {}))
    people = [Person(app, administrator=True), Person(app)]
    with app.app_context():
        for person in people:
            made = [add_profile(person.account) for _ in range(12)]
            person.profileids = [profile["profileid"] for profile in made]
        yield SimpleNamespace(
            app=app, people=people, administrator=people[0], user=people[1]
        )


def add_profile(account):
    """A profile without a value."""
    return create_profile(account, account.accountid, {}, user_profile_fields=[])


# What is empty counts as not given, and `all` overrules the rest. The requests of the other two
# are given a session here; test_http and the raw requests have some without.
NOT_PROMISED = ["negative_data_rejection", "ignored_auth", "missing_required_header"]


@SETTINGS
def test_any_request_of_the_description(world):
    schemathesis = pytest.importorskip("schemathesis", reason=ONLY_CI)
    engine = pytest.importorskip("schemathesis.engine", reason=ONLY_CI)
    config = schemathesis.config.SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_wsgi("/openapi.json", world.app, config=config)
    schema.config.generation.update(deterministic=True, max_examples=60)
    schema.config.checks.update(excluded_check_names=NOT_PROMISED)
    schema.hooks.hook("map_case")(lambda _, case: aimed(case, world))
    answers = Counter()
    for event in engine.from_schema(schema).execute():
        error = getattr(event, "value", None) or getattr(event, "exception", None)
        assert not isinstance(error, Exception), repr(error)
        if recorder := getattr(event, "recorder", None):
            found = [
                each.failure_info
                for checks in recorder.checks.values()
                for each in checks
            ]
            assert not any(found), [
                f"{each.failure}\n{each.code_sample}" for each in found if each
            ]
            for id, sent in recorder.interactions.items():
                answers[
                    recorder.cases[id].value.path, sent.response.status_code // 100
                ] += 1
    for _, path in FOUR:
        assert answers[path, 2] >= 30 and answers[path, 4] >= 5, answers
    assert answers["/health", 2]


def aimed(case, world):
    """The case with a session mostly, and mostly with what is there in place of what is not.

    What no schema can say is made true of all: a cursor is there, and a domain is a real one.
    """
    chance = Random(repr((case.query, case.body)))
    caller = chance.choice([*world.people, world.administrator])
    owner = caller if chance.random() < 0.7 else chance.choice(world.people)
    known = {"accountid": owner.accountid, "profileid": chance.choice(owner.profileids)}
    sessionid = world.administrator.session["sessionid"]
    known["after"] = sessionid if "sessions" in case.path else known["profileid"]
    for name, value in case.body.items() if isinstance(case.body, dict) else ():
        if name.endswith("-email") and isinstance(value, str):
            case.body[name] = re.sub(
                "(?<=.)@.*", "@example.com", value, flags=re.DOTALL
            )
    if chance.random() < 0.9:
        case.headers = {
            **(case.headers or {}),
            "Authorization": f"Bearer {caller.token}",
        }
    if chance.random() < 0.2:
        known = {"after": known["after"]}
    else:
        (case.headers or {}).pop("X-Appid", None)
    case.query = {
        name: known.get(name, value) for name, value in (case.query or {}).items()
    }
    return case


SPECIAL = st.sampled_from(
    "\x00\u200b\u202e\ufeff\uffff\U0010ffff\u0301ß'\"\\%_\r\n 👩‍🚀"
)
LONG = st.builds(str.__mul__, st.text(min_size=1, max_size=2), st.integers(1, 30_000))
ANY_TEXT = (
    st.text() | st.text(st.characters()) | st.text(SPECIAL) | LONG
)  # lone surrogates too
ADDRESSES = st.emails() | st.text(st.sampled_from('a.@-"\\()[]<>:;, é١xn'))
ADDRESSES |= st.builds("{}@{}".format, ANY_TEXT, ANY_TEXT)
ADDRESSES |= st.builds("{}{}".format, st.emails(), st.text(max_size=3))
ISO = "%Y-%m-%d|%Y%m%d|%G-W%V-%u|%GW%V%u".split("|")
WAYS = [
    *ISO,
    *"%Y/%m/%d|%m/%d/%Y|%d %B %Y|%d-%b-%Y|%B %d, %Y|%b %d %Y|%d %b %Y".split("|"),
]
FORMATS = [
    day + time for day in ISO for time in ("T10:30:00.5Z", " 10:30", "T10:30+0100")
] + WAYS
FORMATS += [f"%A, {way}" for way in WAYS[6:]] + [
    "%a %b %d %T %Y",
    "%a %b %d %Y %T GMT+0530 (x)",
]
PARTS = "1950 31 1 02 2050 Jan february W05 031 T Z PM st + - / . , : +14:00 10:30 tue".split()
DAYS, SOME = st.dates(min_value=date(1000, 1, 2)), st.sampled_from(PARTS)
WRITTEN = st.builds(date.strftime, DAYS, st.sampled_from(FORMATS))
DATES = st.lists(st.sampled_from([*PARTS, " "]), max_size=9).map("".join)
DATES |= st.builds("{}{}".format, WRITTEN, st.text(max_size=3) | SOME)
DATES |= st.builds("{}{}".format, SOME, WRITTEN)
OTHERS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.lists(st.text(), max_size=2)
)
STRATEGIES = {"email": ADDRESSES, "date": DATES}


@pytest.mark.parametrize("field", CATALOGUE)
def test_any_value_is_stored_whole_or_refused_by_its_code(world, field):
    value = ANY_TEXT | STRATEGIES.get(CATALOGUE[field].rule, ANY_TEXT) | OTHERS
    account, property = world.administrator.account, CATALOGUE[field].property

    @tried(200, value=value, creating=st.booleans())
    def check(value, creating):
        call, target = create_profile, account.accountid
        if not creating:
            call, target = update_profile, add_profile(account)["profileid"]
        try:
            made = call(account, target, {field: value}, user_profile_fields=[field])
        except ServiceError as error:
            lengths = [f"invalid-{field}-length"] if field in BOUNDED_FIELDS else []
            codes = [f"invalid-{field}", *lengths]
            assert error.code in codes and error.status == 400
        else:
            assert list_profiles(account, limit=1) == [made]
            assert (
                made[property] == value
                or field == "dob"
                and date.fromisoformat(made[property])
            )


def test_any_day_is_read_in_any_way(user):
    @tried(1_000, day=DAYS, way=st.sampled_from(FORMATS))
    def check(day, way):
        body = {"dob": day.strftime(way)}
        made = create_profile(
            user.account, user.accountid, body, user_profile_fields=["dob"]
        )
        assert made["dob"] == day.isoformat()
