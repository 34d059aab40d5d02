"""A client for Profiles in Python. Copy it into your product and adapt it.

It reads these environment variables, of which the first two are required:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a call waits for data, all tries together, by
  default 5 for a GET and 15 for a change. Choose less than your web server gives a
  page, or more for a nightly job. A response that trickles in can take longer,
  because this limits each wait for data, not the whole response.

You identify a user by your own id for the user:

    user = sign_up(user_id)  # once
    user = User(user_id)  # each time the user signs in
    user = User(user_id, token, sessionid)  # in later requests

Store user.token and user.sessionid in your own session after each use, because both
change when an expired session is renewed. If a call raises SignedOut, end your own
session too, and show your sign-in page. Threads and forked processes can use this
module, each with its own User.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import cache
from hashlib import sha256
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl

import requests
from requests import Response

__version__ = "5.0.0"  # of the service that this file comes with

Object = dict[str, Any]  # an account, a profile or a session, as API.md shows it
Fields = Mapping[str, str | None]  # such as {"full-name": "Ada King"}

DURATION = 28_800  # seconds that a user's session lasts
WAITS = (0, 1, 2, 4)  # seconds before each retry, if the response has no Retry-After
TRY_SECONDS = 15  # seconds to wait for one response

# The service ignores most other names, so send_request() refuses them.
FIELDS = (
    "full-name contact-email display-email display-name company-name dob phone "
    "occupation location website default duration"
).split()
PAGING = ["accountid", "limit", "offset", "after", "all"]
LIST_PARAMETERS = {
    "accounts": PAGING,
    "profiles": ["email", *PAGING],
    "sessions": ["active", *PAGING],
}
OTHER_PARAMETERS = ["accountid", "profileid", "sessionid"]


@dataclass(eq=False)
class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: the response is not the service's, but a proxy's page, say.
    no-answer: there was no response, so there is no status either.
    not-sent: the address, application id or token is malformed, so nothing was sent.
    """

    code: str
    status: int | None = None
    request_id: str | None = None  # lets the operator find the request in the log
    reason: str | None = None  # of a 401: ended, expired, or None for an unknown token
    errors: dict[str, str] = field(default_factory=dict)  # each wrong field's code
    retry_after: str = ""
    detail: str = ""  # of no-answer and not-sent: the address, and what went wrong

    def __post_init__(self) -> None:
        self.args = astuple(self)  # copy and pickle create the error from these

    def __str__(self) -> str:
        status = f"status {self.status}" if self.status else ""
        errors = [f"{name}: {code}" for name, code in self.errors.items()]
        request = f"request {self.request_id}" if self.request_id else ""
        parts = [self.code, self.detail, status, *errors, request]
        return ", ".join(part for part in parts if part)


class AdministratorTokenError(ServiceError):
    """PROFILES_TOKEN or PROFILES_APPID is wrong. Tell the operator, not the user."""


class SignedOut(ServiceError):
    """The user must sign in again, because the session was ended or is unknown.

    If the account was deleted, the code is invalid-accountid.
    """


def send_request(
    method: str,
    path: str,
    token: str,
    body: Mapping[str, object] | None = None,
    key: str | None = None,
    if_match: str | None = None,
    **query: str | int,
) -> Response:
    """Send a request and return the response. Raises ServiceError.

    Without a response, the request is sent again once, at once; after a 502, 503 or
    504, up to four times. Raises ValueError for an unknown field or parameter, and for
    a parameter that is None or empty, because requests would leave out None: without
    an accountid, for example, an administrator's list has the rows of all users.
    """
    for name in body or {}:
        if name not in FIELDS:
            raise ValueError(f"unknown field: {name}")
    parameters = LIST_PARAMETERS.get(path.rpartition("/")[2], OTHER_PARAMETERS)
    for name, value in query.items():
        if name not in parameters:
            raise ValueError(f"unknown parameter: {name}")
        if value is None or value == "":
            raise ValueError(f"{name} has no value")
    headers = {"Authorization": f"Bearer {token}", "X-Appid": appid()}
    if key is not None:
        headers["Idempotency-Key"] = key
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"'
    request = {"method": method, "params": query, "json": body, "headers": headers}
    default = 5 if method == "GET" else 15
    timeout = os.environ.get("PROFILES_TIMEOUT") or default
    deadline = monotonic() + float(timeout)
    losses = 0
    for default_wait in WAITS:
        try:
            return send_once(path, deadline, request)
        except ServiceError as error:
            wait = default_wait
            if error.code == "no-answer":
                losses += 1
                wait = 0
            elif error.status not in (502, 503, 504):
                raise
            if error.retry_after.isdecimal():
                wait = int(error.retry_after)
            if losses > 1 or monotonic() + wait >= deadline:
                raise
        sleep(wait)
    return send_once(path, deadline, request)


def appid() -> str:
    return os.environ.get("PROFILES_APPID") or "default"


@cache
def http_session(pid: int) -> requests.Session:
    """Return the connections of a process, which a forked one must not use."""
    # uWSGI forks without calling the hooks of os.register_at_fork().
    session = requests.Session()
    # Without an auth, requests would replace the token with a password from ~/.netrc.
    session.auth = lambda request: request
    return session


def send_once(path: str, deadline: float, request: dict[str, Any]) -> Response:
    url = os.environ["PROFILES_URL"].rstrip("/") + "/api/" + path
    seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
    try:
        # A redirect is not followed, because it would turn a POST into a GET.
        options = {"timeout": seconds, "allow_redirects": False, **request}
        http = http_session(os.getpid())
        response = http.request(url=url, **options)
    except (ValueError, requests.RequestException) as error:
        code = "not-sent" if isinstance(error, ValueError) else "no-answer"
        detail = f"{show_address()}, {describe_cause(error)}"
        # "from None", because the error's own text may contain the token or the query.
        raise ServiceError(code, detail=detail) from None
    try:
        content = response.json()
        if response.status_code in (200, 201):
            return response
        is_error = content["object"] == "error" and "message" in content
    except (ValueError, TypeError, KeyError):
        is_error = False
    if not is_error:
        content = {"message": "unexpected-answer"}
    code = content["message"]
    error_type = SignedOut if code == "sign-in-required" else ServiceError
    raise error_type(
        code,
        response.status_code,
        response.headers.get("X-Request-Id"),
        content.get("reason"),
        content.get("errors", {}),
        response.headers.get("Retry-After", ""),
    )


def show_address() -> str:
    """Return the scheme, host and port of PROFILES_URL; the rest may be secret."""
    # Without a dot and a colon, even the whole may be: the token, for example.
    host = r"(?:[\w.-]*|\[[\w.:]+\])(?::\d+)?"
    pattern = rf"(?=.*[.:])(\w+://)?(?:[^/?#]*@)?({host})(?:[/?#][^@]*)?"
    match = re.fullmatch(pattern, os.environ["PROFILES_URL"])
    return (match[1] or "") + match[2] if match else "malformed PROFILES_URL"


def describe_cause(error: BaseException) -> str:
    """Return the class of the innermost cause and, if it has one, the system's text."""
    for cause in (error.__cause__, *error.args):
        if isinstance(cause, BaseException):
            return describe_cause(cause)
    text = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def administrate(method: str, path: str, **options: Any) -> Response:
    """Send a request with the administrator's token."""
    token = os.environ["PROFILES_TOKEN"]
    try:
        return send_request(method, f"administrator/{path}", token, **options)
    except ServiceError as error:
        if error.code in ("sign-in-required", "administrator-required"):
            raise AdministratorTokenError(*error.args) from error
        raise


def walk(
    send: Callable[..., Response], path: str, **query: str | int
) -> Iterator[Object]:
    """Yield every row of a list, as in walk(administrate, "sessions", limit=100).

    Raises ServiceError("invalid-after") if the last profile or session of a page was
    deleted before the next page was read. Start again then.
    """
    while True:
        response = send("GET", path, **query)
        yield from response.json() or []
        if "next" not in response.links:
            return
        link = response.links["next"]["url"]
        query = dict(parse_qsl(link.partition("?")[2]))


def accounts(limit: int = 100, **query: str) -> Iterator[Object]:
    """Yield all accounts, each with its default profile, in the order of their ids.

    The ``externalid`` of an account is your id for the user, or None if it has none.
    With ``accountid``, yield only this one; with ``after``, those after this id.
    """
    return walk(administrate, "accounts", limit=limit, **query)


def profiles(limit: int = 100, **query: str) -> Iterator[Object]:
    """Yield the profiles of all users, newest first.

    With ``email``, yield those with this address; with ``accountid``, this account's.
    """
    return walk(administrate, "profiles", limit=limit, **query)


def sign_up(user_id: str, duration: int = DURATION) -> "User":
    """Create the account of a user, start a session, and return the User.

    Calling it again is safe, because the same id always gives the same account. Raises
    ServiceError("invalid-idempotency-key") if another user's id has the same hash. Then
    don't call User(user_id), because it would act for that other user.
    """
    compute_accountid(user_id)  # raises ValueError before anything is sent
    administrate("POST", "create-account", key=user_id)
    return User(user_id, duration=duration)


def compute_accountid(user_id: str) -> str:
    """Return the id that the service gives to the account of your user."""
    # HTTP strips whitespace around a header, so "x " and "x" would be one account.
    is_key = isinstance(user_id, str) and re.fullmatch("[ -~]{1,255}", user_id)
    if not is_key or user_id != user_id.strip():
        raise ValueError(f"not 1 to 255 ASCII characters, stripped: {user_id!r}")
    return "acct_" + sha256(f"{appid()} {user_id}".encode()).hexdigest()[:16]


@contextmanager
def done_already(*codes: str) -> Iterator[None]:
    """Ignore these codes, which say that another request has done the same."""
    try:
        yield
    except ServiceError as error:
        if error.code not in codes:
            raise


class User:
    """A user who has signed up, by your id for the user.

    Without the ``token`` and the ``sessionid`` that you have kept, this starts a
    session of ``duration`` seconds; if the account was deleted, it raises
    ServiceError("invalid-accountid"). When the session has expired, the next call
    starts another one, so ``user.token`` and ``user.sessionid`` change.
    ``user.accountid`` is the id of the user's account.
    """

    def __init__(
        self,
        user_id: str,
        token: str | None = None,
        sessionid: str | None = None,
        duration: int = DURATION,
    ) -> None:
        self.accountid = compute_accountid(user_id)
        self.duration = duration
        if token is None and sessionid is None:
            self.sign_in()
        elif token and sessionid:
            self.token, self.sessionid = token, sessionid
        else:
            raise ValueError("the token and its sessionid belong together")

    def sign_in(self) -> None:
        """Start a session, and use its token from now on."""
        body = {"duration": self.duration}
        session = self.administrate("POST", "create-session", body=body)
        if session["accountid"] != self.accountid:
            raise ServiceError("unexpected-answer", 201)
        self.token = session["token"]
        self.sessionid = session["sessionid"]

    def administrate(self, method: str, path: str, **options: Any) -> Any:
        """Send an administrator's request about this account; return its JSON."""
        return administrate(method, path, accountid=self.accountid, **options).json()

    def send(self, method: str, path: str, **options: Any) -> Response:
        """Send a request of the user. If the session has expired, renew it and resend.

        Raises SignedOut.
        """
        path = f"user/{path}"
        try:
            return send_request(method, path, self.token, **options)
        except SignedOut as error:
            # An unknown token: its account or session was deleted, or PROFILES_APPID
            # is wrong, which raises AdministratorTokenError here.
            if error.reason is None and not self.administrate("GET", "accounts"):
                raise SignedOut("invalid-accountid", 404) from error
            if error.reason != "expired":
                raise
        self.sign_in()
        return send_request(method, path, self.token, **options)

    def call(self, method: str, path: str, **options: Any) -> Object:
        """Send a request of the user; return the object of the response."""
        content: Object = self.send(method, path, **options).json()
        return content

    def account(self) -> Object:
        """Return the account; its ``profile`` is the default profile, or None."""
        return self.call("GET", "account", accountid=self.accountid)

    def profile(self, profileid: str) -> Object:
        """Return a profile of the user."""
        return self.call("GET", "profile", profileid=profileid)

    def profiles(self, limit: int = 100) -> Iterator[Object]:
        """Yield the profiles, newest first."""
        return walk(self.send, "profiles", accountid=self.accountid, limit=limit)

    def save_profile(
        self, fields: Fields, profileid: str | None = None, if_match: str | None = None
    ) -> Object:
        """Save the fields in a profile and return it.

        Without a profileid, this is the default profile. If there is none, create the
        profile with the key ``first``, or change it if it exists, and make it the
        default. No other profile is changed.

        With ``if_match``, the ``updatedAt`` of the profile that the user has edited, or
        "" if there was none, nothing is saved if the profile was changed after that.
        This raises ServiceError("profile-changed"): show the user the profile as it is.
        """
        if profileid is not None:
            query = {"profileid": profileid, "if_match": if_match}
            return self.call("PATCH", "update-profile", body=fields, **query)
        default = self.account()["profile"]
        if default is not None:
            with done_already("invalid-profileid"):  # it was just deleted
                return self.save_profile(fields, default["profileid"], if_match)
        if if_match:
            raise ServiceError("profile-changed", 412)  # it was deleted
        return self.save_first_profile(fields, if_match)

    def save_first_profile(self, fields: Fields, if_match: str | None) -> Object:
        """Save the fields in the profile with the key ``first``, as the default."""
        options = {"key": "first", "accountid": self.accountid}
        body = {**fields, "default": "true"}
        response = self.send("POST", "create-profile", body=body, **options)
        profile: Object = response.json()
        if response.status_code == 200:  # it existed, so nothing has been saved yet
            profile = self.save_profile(fields, profile["profileid"], if_match)
            self.set_default_profile(profile["profileid"])
        return profile

    def create_profile(self, fields: Fields, key: str) -> Object:
        """Create a profile, or return the one that was created with the same key.

        Use a new UUID as the key of each profile.
        """
        options = {"key": key, "accountid": self.accountid}
        return self.call("POST", "create-profile", body=fields, **options)

    def set_default_profile(self, profileid: str) -> Object:
        """Make a profile the default; return the account."""
        return self.call("PATCH", "set-default-profile", profileid=profileid)

    def delete_profile(self, profileid: str) -> None:
        """Delete a profile. If it was the default, the user has none afterwards."""
        with done_already("invalid-profileid"):
            self.send("DELETE", "delete-profile", profileid=profileid)

    def sessions(self, limit: int = 100) -> Iterator[Object]:
        """Yield the running sessions, newest first: where the user is signed in."""
        query = {"accountid": self.accountid, "active": "true"}
        return walk(self.send, "sessions", limit=limit, **query)

    def end_session(self, sessionid: str) -> None:
        """End one of the user's sessions, to sign the user out on another device."""
        with done_already("invalid-sessionid"):
            self.send("PATCH", "end-session", sessionid=sessionid)

    def sign_out(self) -> None:
        """End this token's session. Discard the User: another call raises SignedOut."""
        with done_already("sign-in-required", "invalid-sessionid"):
            send_request("PATCH", "user/end-session", self.token)

    def sign_out_everywhere(self) -> None:
        """End all sessions. Discard the User: another call raises SignedOut."""
        self.administrate("PATCH", "end-sessions")

    def delete(self) -> None:
        """Delete the account with its profiles and sessions."""
        with done_already("invalid-accountid"):
            self.administrate("DELETE", "delete-account")
