"""The clock of the process, which may jump ahead and be corrected afterwards."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from service import SESSIONS, assert_error, named

import models
from models import Session

DAY = timedelta(days=1)
AN_HOUR_AGO = models.timestamp(time.time_ns() - 3_600 * 10**9)


@pytest.fixture
def jump(monkeypatch):
    """The clock was a day ahead when the last row was stored; it is right again."""
    ahead = 86_400 * 10**9
    monkeypatch.setattr(models, "latest", time.time_ns() + ahead)


def moment(text):
    return datetime.fromisoformat(text)


def test_a_session_goes_on_after_a_jump(administrator, user, jump):
    """It is ended when somebody ends it."""
    assert user.create(named("name")).status_code == 201
    sessions = administrator.get(SESSIONS).json
    assert [session["ended"] for session in sessions] == [False, False]
    path = f"/api/administrator/end-sessions?accountid={user.accountid}"
    assert administrator.patch(path).json == {"object": "end", "count": 1}
    assert_error(user.create(named("name")), 401, "sign-in-required", "ended")
    ended_at = Session.get(Session.accountid == user.accountid).endedAt
    assert moment(ended_at) < datetime.now(UTC) + DAY / 2


def test_a_session_that_is_made_after_a_jump_lasts_for_its_duration(flask, user, jump):
    session = flask("create-session", user.accountid, "--duration", "60")
    assert moment(session["createdAt"]) > datetime.now(UTC) + DAY / 2  # in its order
    left = moment(session["expiresAt"]) - datetime.now(UTC)
    assert timedelta(seconds=50) < left <= timedelta(seconds=60)


def test_a_purge_after_a_jump_keeps_what_ended_today(flask, user, jump):
    flask("end-session", user.session["sessionid"])
    flask("purge-sessions", "--days", "1")
    assert Session.get_or_none(Session.sessionid == user.session["sessionid"])


def test_a_session_that_has_expired_can_be_ended(flask, user):
    """Its client cannot renew it, and it stays ended if the clock was ahead."""
    running = flask("create-session", user.accountid)["sessionid"]
    expired = flask("create-session", user.accountid)["sessionid"]
    Session.update(expiresAt=AN_HOUR_AGO).where(Session.sessionid != running).execute()
    assert_error(user.create(), 401, "sign-in-required", "expired")
    assert flask("end-session", expired)["ended"]
    assert Session.get(Session.sessionid == expired).endedAt
    assert flask("end-sessions", user.accountid) == {"object": "end", "count": 1}
    assert_error(user.create(), 401, "sign-in-required", "ended")
