"""A client for Profiles in Python. Copy it into your product and adapt it.

It reads these environment variables, of which the first two are required:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a request waits for data, including its retries, by
  default 5 for a GET and 15 for a change. Choose less than your web server gives a
  page, or more for a nightly job. A method that sends several requests can take longer,
  and so can a response that trickles in, because this limits each wait for data.

You identify a user by your own id for the user:

    user = sign_up(user_id)  # once
    user = User(user_id)  # each time the user signs in
    user = User(user_id, token, sessionid)  # in later requests

Store user.token and user.sessionid in your own session. If a call raises SignedOut, end
your own session too, and show your sign-in page. Threads and forked processes can use
this module, each with its own User.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from functools import cache
from hashlib import sha256
from secrets import token_hex
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl

import requests
from requests import Response

__version__ = "6.0.0"  # of the service that this file comes with

Object = dict[str, Any]  # an account, a profile or a session, as API.md shows it
Fields = Mapping[str, str | None]  # such as {"full-name": "Ada King"}

DURATION = 2_592_000  # seconds that a user's session lasts: 30 days
WAITS = (0, 1, 2, 4)  # seconds before each retry, if the response has no Retry-After
TRY_SECONDS = 15  # seconds to wait for one response

FIELDS = (
    "full-name contact-email display-email display-name company-name dob phone "
    "occupation location website"
).split()
# The service ignores unknown fields, so send_request() refuses them.
BODY_NAMES = [*FIELDS, "default", "duration"]
# A field that the service's settings add, at most 64 characters long.
OWN_FIELD = "x-[a-z0-9]+(-[a-z0-9]+)*"
PARAMETERS = "accountid profileid sessionid email active limit offset after all".split()

# A PROFILES_URL has no password or query. Errors show only the first group, because
# the path may be secret.
ADDRESS = r"(https?://[\w.:\[\]-]+)(/[^@?#\s]*)?"


@dataclass(eq=False)
class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: the response is not the service's, but a proxy's page, say.
    no-answer: there was no response, so there is no status either.
    not-sent: a variable is not set, or a variable, token or key is malformed.
    """

    code: str
    status: int | None = None
    request_id: str | None = None  # finds each try in the service's log
    reason: str | None = None  # of a 401: ended, expired, or None for an unknown token
    errors: dict[str, str] = field(default_factory=dict)  # each wrong field's code
    retry_after: str = ""
    detail: str = ""  # of no-answer and not-sent: what went wrong

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
    """The user must sign in again: the session ended, expired or was deleted."""


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

    If no response arrives, the request is retried once, immediately; after a 502, 503
    or 504, up to four times. Raises ValueError for an unknown field or parameter, and
    for a parameter that is None or empty, because it would count as not sent: without a
    sessionid, for example, end-session ends the session of the token.
    """
    check_names(body or {}, query)
    headers = {
        "Authorization": f"Bearer {token}",
        "X-Appid": appid(),
        "X-Request-Id": token_hex(16),  # of each try
    }
    if key is not None:
        headers["Idempotency-Key"] = key
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"'
    for name, value in headers.items():
        if not re.fullmatch("[!-~]([ -~]*[!-~])?", value):
            raise ServiceError("not-sent", detail=f"malformed {name}")
    request = {"method": method, "params": query, "json": body, "headers": headers}
    default = "5" if method == "GET" else "15"
    timeout = os.environ.get("PROFILES_TIMEOUT") or default
    if not re.fullmatch(r"\d+(\.\d+)?", timeout):
        raise ServiceError("not-sent", detail="malformed PROFILES_TIMEOUT")
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


def check_names(body: Mapping[str, object], query: Mapping[str, object]) -> None:
    """Raise ValueError for an unknown field or parameter, or an empty parameter."""
    for name in body:
        is_own = re.fullmatch(OWN_FIELD, name) and len(name) <= 64
        if name not in BODY_NAMES and not is_own:
            raise ValueError(f"unknown field: {name}")
    for name, value in query.items():
        if name not in PARAMETERS:
            raise ValueError(f"unknown parameter: {name}")
        if value is None or value == "":
            raise ValueError(f"{name} has no value")


def appid() -> str:
    return os.environ.get("PROFILES_APPID") or "default"


def required_variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ServiceError("not-sent", detail=f"{name} is not set")
    return value


@cache
def http_session(pid: int) -> requests.Session:
    """Return the connections of a process, which a forked one must not use."""
    # uWSGI forks without calling the hooks of os.register_at_fork().
    session = requests.Session()
    # Without an auth, requests would replace the token with a password from ~/.netrc.
    session.auth = lambda request: request
    return session


def send_once(path: str, deadline: float, request: dict[str, Any]) -> Response:
    address = required_variable("PROFILES_URL")
    match = re.fullmatch(ADDRESS, address)
    if not match:
        raise ServiceError("not-sent", detail="malformed PROFILES_URL")
    url = address.rstrip("/") + "/api/" + path
    request_id = request["headers"]["X-Request-Id"]
    seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
    try:
        # A redirect is not followed, because it would turn a POST into a GET.
        options = {"timeout": seconds, "allow_redirects": False, **request}
        response = http_session(os.getpid()).request(url=url, **options)
    except (ValueError, requests.RequestException) as error:
        detail = f"{match[1]}, {describe_cause(error)}"
        # "from None", because the error's own text may contain the token or the query.
        raise ServiceError("no-answer", None, request_id, detail=detail) from None
    content: Any = None
    with suppress(ValueError):  # if it is not JSON
        content = response.json()
        if response.status_code in (200, 201):
            return response
    if not isinstance(content, dict) or content.get("object") != "error":
        content = {}
    code = content.get("message", "unexpected-answer")
    error_type = ServiceError
    if code in ("sign-in-required", "administrator-required"):
        error_type = SignedOut if path.startswith("user/") else AdministratorTokenError
    raise error_type(
        code,
        response.status_code,
        response.headers.get("X-Request-Id", request_id),
        content.get("reason"),
        content.get("errors", {}),
        response.headers.get("Retry-After", ""),
    )


def describe_cause(error: BaseException) -> str:
    """Return what the system says about the innermost cause, or the cause's class."""
    for cause in (error.__cause__, *error.args):
        if isinstance(cause, BaseException):
            return describe_cause(cause)
    return getattr(error, "strerror", None) or type(error).__name__


def administrate(method: str, path: str, **options: Any) -> Response:
    """Send a request with the administrator's token."""
    token = required_variable("PROFILES_TOKEN")
    return send_request(method, f"administrator/{path}", token, **options)


def read_page(
    send: Callable[..., Response], path: str, **query: str | int
) -> tuple[list[Object], dict[str, str] | None]:
    """Return a page of a list, and the query of the next page, or None.

    For example, read_page(administrate, "accounts", limit=20). The query of the next
    page has ``after`` and all that you send, except ``offset``.
    """
    response = send("GET", path, **query)
    rows = response.json() or []
    if "next" not in response.links:
        return rows, None
    link = response.links["next"]["url"]
    return rows, dict(parse_qsl(link.partition("?")[2]))


def walk(
    send: Callable[..., Response], path: str, **query: str | int
) -> Iterator[Object]:
    """Yield every row of a list, as in walk(administrate, "sessions", limit=100).

    Raises ServiceError("invalid-after") if the last profile or session of a page was
    deleted before the next page was read. Start again then.
    """
    rows, next_query = read_page(send, path, **query)
    yield from rows
    while next_query:
        rows, next_query = read_page(send, path, **next_query)
        yield from rows


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
        reason = "must be 1 to 255 printable ASCII characters, trimmed"
        raise ValueError(f"{reason}: {user_id!r}")
    return "acct_" + sha256(f"{appid()} {user_id}".encode()).hexdigest()[:16]


def to_fields(profile: Object) -> dict[str, str | None]:
    """Return the values of a profile as fields, of which you can change some.

    For example, user.save_profile({**to_fields(profile), "phone": "+44 20 7946 0958"}).
    """
    fields = {}
    for name in FIELDS:
        property_name = re.sub("-(.)", lambda match: match[1].upper(), name)
        fields[name] = profile[property_name]
    return fields | (profile["fields"] or {})


@contextmanager
def ignore_code(code: str) -> Iterator[None]:
    """Ignore this code, which says that there is nothing left to do."""
    try:
        yield
    except ServiceError as error:
        if error.code != code:
            raise


class User:
    """A user who has signed up, identified by your id for the user.

    Without the ``token`` and the ``sessionid`` that you have stored, this starts a
    session that lasts ``duration`` seconds, at most a year: use the lifetime of your
    own session. If the account was deleted, it raises
    ServiceError("invalid-accountid"). ``user.accountid`` is the id of the account.
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
        query = {"accountid": self.accountid}
        body = {"duration": self.duration}
        session = administrate("POST", "create-session", body=body, **query).json()
        self.token = session["token"]
        self.sessionid = session["sessionid"]

    def send(self, method: str, path: str, **options: Any) -> Response:
        """Send a request of the user. Raises SignedOut."""
        return send_request(method, f"user/{path}", self.token, **options)

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

        Without a profileid, this is the default profile. If there is none, the profile
        with the key ``first`` is created, unless it exists, and becomes the default.

        ``if_match`` is the ``updatedAt`` of the profile that the user has edited, or ""
        if your form showed no profile. If the profile has changed since then, nothing
        is saved, and this raises ServiceError("profile-changed"): show it again.
        """
        if profileid is None:
            default = self.account()["profile"]
            if default is None:
                return self._save_first_profile(fields, if_match)
            profileid = default["profileid"]
        query = {"profileid": profileid, "if_match": if_match}
        return self.call("PATCH", "update-profile", body=fields, **query)

    def _save_first_profile(self, fields: Fields, if_match: str | None) -> Object:
        """Save the profile with the key ``first``, and make it the default."""
        if if_match:
            raise ServiceError("profile-changed", 412)  # the edited one was deleted
        options = {"key": "first", "accountid": self.accountid}
        body = {**fields, "default": "true"}
        response = self.send("POST", "create-profile", body=body, **options)
        profile: Object = response.json()
        if response.status_code == 201:
            return profile
        self.set_default_profile(profile["profileid"])  # it existed
        return self.save_profile(fields, profile["profileid"], if_match)

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
        with ignore_code("invalid-profileid"):
            self.send("DELETE", "delete-profile", profileid=profileid)

    def sessions(self, limit: int = 100) -> Iterator[Object]:
        """Yield the running sessions, newest first: where the user is signed in."""
        query = {"accountid": self.accountid, "active": "true"}
        return walk(self.send, "sessions", limit=limit, **query)

    def end_session(self, sessionid: str) -> None:
        """End one of the user's sessions, to sign the user out on another device."""
        with ignore_code("invalid-sessionid"):
            self.send("PATCH", "end-session", sessionid=sessionid)

    def sign_out(self) -> None:
        """End this token's session. Discard the User: another call raises SignedOut."""
        with ignore_code("sign-in-required"):
            self.send("PATCH", "end-session")

    def sign_out_everywhere(self) -> None:
        """End all sessions of the user with this id, whose token isn't used.

        Discard the User: another call raises SignedOut.
        """
        administrate("PATCH", "end-sessions", accountid=self.accountid)

    def delete(self) -> None:
        """Delete the account of the user with this id, whose token isn't used.

        Its profiles and sessions are deleted, too.
        """
        with ignore_code("invalid-accountid"):
            administrate("DELETE", "delete-account", accountid=self.accountid)
