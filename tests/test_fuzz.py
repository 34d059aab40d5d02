"""Any input at all: the description's requests, and any text in every field."""

import re
from collections import Counter
from datetime import date
from itertools import chain
from random import Random

import pytest
from serving import ALL_FIELDS, CREATE, PROFILES, SESSIONS, UPDATE, Person
from test_administrators import METHODS
from test_dates import ways_to_write

from accounts import create_account
from errors import ServiceError
from operations import create_profile, list_profiles, update_profile
from validators import CATALOGUE

ONLY_CI = "pip install -r tests/requirements.txt to run it"
hypothesis = pytest.importorskip("hypothesis", reason=ONLY_CI)
st = hypothesis.strategies

pytestmark = pytest.mark.long
TEN_FIELDS = {
    "USER_PROFILE_FIELDS": ALL_FIELDS,
    "MAXIMUM_PROFILE_COMPANY_NAME_LENGTH": 60,
}


def add_profile(account):
    """Add a profile without a value; returns its profileid."""
    options = {"user_profile_fields": []}
    return create_profile(account, account.accountid, {}, **options)["profileid"]


# What is empty counts as not given, and `all` overrules the rest. The requests of the
# other two are given a session here; test_http has some without.
NOT_PROMISED = ["negative_data_rejection", "ignored_auth", "missing_required_header"]


@pytest.mark.parametrize("settings", [{}, TEN_FIELDS])
def test_any_request_of_the_description(make_app, settings):
    app = make_app(**settings)
    people = [Person(app, administrator=True), Person(app)]
    with app.app_context():
        for person in people:  # each gets more than a page
            profileids = [add_profile(person.account) for _ in range(12)]
            person.profileids = profileids
    schemathesis = pytest.importorskip("schemathesis", reason=ONLY_CI)
    config = schemathesis.config.SchemathesisConfig(seed=1)
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app, config=config)
    schema.config.generation.update(deterministic=True, max_examples=60)
    schema.config.checks.update(excluded_check_names=NOT_PROMISED)

    @schema.hooks.hook("map_case")
    def aim(context, case):
        with app.app_context():
            return aimed(case, people)

    answers = Counter()
    for event in schemathesis.engine.from_schema(schema).execute():
        for name in ("value", "exception"):
            error = getattr(event, name, None)
            assert not isinstance(error, Exception), repr(error)
        if recorder := getattr(event, "recorder", None):
            for check in chain(*recorder.checks.values()):
                found = check.failure_info
                assert not found, f"{found.failure}\n{found.code_sample}"
            for name, interaction in recorder.interactions.items():
                path = recorder.cases[name].value.path
                answers[path, interaction.response.status_code // 100] += 1
    for path in (UPDATE, CREATE, PROFILES, SESSIONS, *METHODS):
        assert answers[path, 2] >= 30, answers
        assert answers[path, 4] >= 5, answers
    assert answers["/health", 2]


def aimed(case, people):
    """The case, mostly with a session, and mostly with identifiers that exist.

    What no schema can say is made true of all: a cursor is there, a domain a real one.
    """
    chance = Random(repr((case.query, case.body, case.headers)))
    administrator = people[0]
    caller = chance.choice([administrator] * 4 + people)
    owner = chance.choice([*[caller] * 5, *people])
    profileid = chance.choice(owner.profileids)
    sessionid = administrator.session["sessionid"]
    existing = {"after": sessionid if case.path == SESSIONS else profileid}
    headers = dict(case.headers or {})
    if chance.random() < 0.9:
        headers["Authorization"] = f"Bearer {caller.token}"
    if chance.random() < 0.8:
        accountid = owner.accountid
        if case.path in METHODS:  # which would end the session of a caller
            accountid = create_account()["accountid"]
        existing |= {"accountid": accountid, "profileid": profileid}
        headers.pop("X-Appid", None)
    case.headers = headers
    for name in case.query or {}:
        case.query[name] = existing.get(name, case.query[name])
    if isinstance(case.body, dict):
        for name, value in case.body.items():
            if name.endswith("-email") and isinstance(value, str):
                case.body[name] = re.sub("(?s)@.*", "@example.com", value)
    return case


def joined(*parts):
    return st.tuples(*parts).map("".join)


SPECIAL = "\x00\u200b\u202e\ufeff\uffff\U0010ffff\u0301ß'\"\\%_\r\n 👩‍🚀"
FEW_CHARACTERS = st.text(max_size=3)
ANY_TEXT = st.one_of(
    st.text(),
    st.text(SPECIAL),
    st.text(st.characters()),  # lone surrogates too
    st.builds(str.__mul__, FEW_CHARACTERS, st.integers(1, 20_000)),
)
ADDRESSES = st.one_of(
    st.emails(),
    st.text('a.@-"\\()[]<>:;, é١xn'),
    joined(ANY_TEXT, st.just("@"), ANY_TEXT),
    joined(st.emails(), FEW_CHARACTERS),
)
PARTS = "1950 31 1 02 2050 Jan february W05 031 T Z PM st + - / . , : +14:00 10:30 tue"
PART = st.sampled_from([" ", *PARTS.split()])
WRITTEN = st.dates().map(ways_to_write).flatmap(st.sampled_from)
DATES = st.one_of(
    st.lists(PART, max_size=9).map("".join),
    joined(WRITTEN, FEW_CHARACTERS),
    joined(WRITTEN, PART),
    joined(PART, WRITTEN),
)
STRATEGIES = {"email": ADDRESSES, "date": DATES}
same_examples = hypothesis.settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.parametrize("field", CATALOGUE)
@same_examples
@hypothesis.given(st.data(), st.booleans())
def test_any_text_is_stored_whole_or_refused_by_its_code(
    administrator, field, data, creating
):
    property, rule, _ = CATALOGUE[field]
    text = data.draw(ANY_TEXT | STRATEGIES.get(rule, ANY_TEXT))
    account = administrator.account
    options = {"user_profile_fields": [field]}
    call, target = create_profile, account.accountid
    if not creating:
        call, target = update_profile, add_profile(account)
    try:
        stored = call(account, target, {field: text}, **options)
    except ServiceError as error:
        too_long = rule == "name" and error.code == f"invalid-{field}-length"
        assert too_long or error.code == f"invalid-{field}"
        assert error.status == 400
        return
    assert list_profiles(account, limit=1) == [stored]
    if rule == "date":
        assert date.fromisoformat(stored[property])
    else:
        assert stored[property] == text
