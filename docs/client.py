"""A client for Profiles in Python. Copy it into your product and adapt it.

It needs Python 3.10 or newer, and requests (pip install requests). By default, it reads
these environment variables, of which the first two are required:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a request waits for data, including its retries, by
  default 5 for a GET and 15 for a change. Choose less than your web server gives a
  page, or more for a nightly job. A method that sends several requests can take longer,
  and so can a response that trickles in, because this limits each wait for data.

To configure it by values, or to use several services, create a Service, and call
service.sign_up() and service.user() instead of sign_up() and User().

If http_proxy, https_proxy or all_proxy is set, requests go through that proxy, which
can read the tokens if PROFILES_URL begins with http://. To prevent that, exempt the
host of your PROFILES_URL:

    export no_proxy=127.0.0.1

You identify a user by your own id for the user:

    user = sign_up(user_id)  # once
    user = sign_in(user_id)  # each time the user signs in
    user = User(user_id, token, sessionid)  # in later requests

Store user.token and user.sessionid in your own session. If a call raises SignedOut, end
your own session too, and show your sign-in page. Threads and forked processes can use
this module, each with its own User.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from functools import cache
from hashlib import sha256
from http.cookiejar import DefaultCookiePolicy
from secrets import token_hex
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict, TypeVar, overload
from urllib.parse import parse_qsl

import requests
from requests import Response
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection

if TYPE_CHECKING:
    from typing_extensions import Unpack
else:  # for typing.get_type_hints(); Python 3.10 has no Unpack, but anything will do
    Unpack = getattr(typing, "Unpack", list)

__version__ = "6.2.0"  # of the service that this file comes with

DURATION = 2_592_000  # seconds that a user's session lasts: 30 days
WAITS = (0, 1, 2, 4)  # seconds before each retry, if the response has no Retry-After
TRY_SECONDS = 15  # seconds to wait for one response
CONNECT_SECONDS = 3  # seconds to wait for a connection to each address of the host
POOL_SIZE = 1000  # open connections, so that each thread of a server can have one
NOT_GIVEN: Any = False  # the default of a token, because None is one that was lost

if sys.platform == "darwin":
    KEEP_ALIVE_DELAY = socket.TCP_KEEPALIVE
else:
    KEEP_ALIVE_DELAY = socket.TCP_KEEPIDLE
SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, KEEP_ALIVE_DELAY, 60),  # seconds
]

FIELDS = (
    "full-name contact-email display-email display-name company-name dob phone "
    "occupation location website"
).split()
# The service ignores unknown fields, so send_request() refuses them.
BODY_NAMES = [*FIELDS, "default", "duration"]
# A field that the service's settings add, at most 64 characters long.
OWN_FIELD = "x-[a-z0-9]+(-[a-z0-9]+)*"
ISO_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"

HOST = r"[\w-]+(\.[\w-]+)*\.?|\[[0-9A-Fa-f:.]+\]"
ADDRESS = rf"https?://({HOST})(:\d*)?(/[^@?#\s]*)?"  # without password or query
HEADER = "[!-~]([ -~]*[!-~])?"
SETTINGS = {"url": ADDRESS, "token": HEADER, "appid": HEADER, "timeout": r"\d+(\.\d+)?"}

Fields = Mapping[str, str | None]  # such as {"full-name": "Ada King"}
Object = Mapping[str, Any]  # an account, a profile or a session


class Profile(TypedDict):
    profileid: str
    object: Literal["profile"]
    appid: str
    accountid: str
    fullName: str | None
    contactEmail: str | None
    displayEmail: str | None
    displayName: str | None
    companyName: str | None
    dob: str | None
    phone: str | None
    occupation: str | None
    location: str | None
    website: str | None
    fields: dict[str, str] | None
    createdAt: str
    updatedAt: str


class Account(TypedDict):
    accountid: str
    object: Literal["account"]
    appid: str
    externalid: str | None
    administrator: bool
    profileid: str | None
    createdAt: str
    updatedAt: str
    profile: Profile | None


class Session(TypedDict):
    sessionid: str
    object: Literal["session"]
    appid: str
    accountid: str
    duration: int
    csrfToken: str
    expiresAt: str
    lastVerifiedAt: str
    ended: bool
    createdAt: str
    updatedAt: str


class Filter(TypedDict, total=False):
    """The parameters of a list, except ``limit``."""

    accountid: str | int
    email: str | int
    active: str | int
    offset: str | int
    after: str | int
    all: str | int


class Query(Filter, total=False):
    """The parameters of a list."""

    limit: str | int


class Parameters(Query, total=False):
    """The parameters of all requests."""

    profileid: str | int
    sessionid: str | int


class Options(Parameters, total=False):
    """The parameters of a request, and its body and headers."""

    body: Mapping[str, object] | None
    key: str | None
    if_match: str | None


PARAMETERS = [*Parameters.__annotations__]
Method = Literal["GET", "POST", "PATCH", "DELETE"]
ListPath = Literal["accounts", "profiles", "sessions"]
AdministratorPath = Literal[
    "create-account",
    "create-session",
    "end-sessions",
    "delete-account",
    "accounts",
    "profiles",
    "sessions",
]
UserPath = Literal[
    "account",
    "profile",
    "profiles",
    "sessions",
    "create-profile",
    "update-profile",
    "set-default-profile",
    "delete-profile",
    "end-session",
]
Send = Callable[..., Response]  # administrate, or the send of a User
Row = TypeVar("Row")
Page = tuple[list[Row], dict[str, str] | None]


@dataclass(eq=False)
class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: the response is not the service's, but a proxy's page, say.
    no-answer: there was no response, so there is no status either.
    not-sent: a setting is missing, or a setting, token or key is malformed.
    not-stored: the service's settings lack the fields that are named in errors. All
        other fields were stored: profile is the profile as it is now.
    """

    code: str
    status: int | None = None
    request_id: str | None = None  # finds each try in the service's log
    reason: str | None = None  # of a 401: ended, expired, or None for an unknown token
    errors: dict[str, str] = field(default_factory=dict)  # each wrong field's code
    retry_after: str = ""
    detail: str = ""  # of no-answer, not-sent and not-stored: what went wrong
    profile: Profile | None = field(default=None, repr=False)  # of not-stored

    def __post_init__(self) -> None:
        self.args = astuple(self)  # copy and pickle create the error from these

    def __str__(self) -> str:
        status = f"status {self.status}" if self.status else ""
        errors = [f"{name}: {code}" for name, code in self.errors.items()]
        request = f"request {self.request_id}" if self.request_id else ""
        parts = [self.code, self.detail, status, *errors, request]
        return ", ".join(part for part in parts if part)


class AdministratorTokenError(ServiceError):
    """The service's token or appid is wrong. Tell the operator, not the user."""


class SignedOut(ServiceError):
    """The user must sign in again: the session ended, expired or was deleted."""


class Service:
    """A service whose settings are arguments, not environment variables.

    They mean what the variables of the same names mean: ``timeout``, for example, is
    PROFILES_TIMEOUT, in seconds.
    """

    def __init__(
        self,
        url: str,
        token: str,
        appid: str = "default",
        timeout: float | None = None,
    ) -> None:
        self._settings = {"url": url, "token": token, "appid": appid}
        self._settings["timeout"] = "" if timeout is None else str(timeout)

    def __getstate__(self) -> NoReturn:
        raise TypeError("a Service, or a User of it, would be pickled with its token")

    def find_setting(self, name: str) -> tuple[str, str]:
        """Return the name of a setting, for messages, and its value."""
        return name, self._settings[name]

    def check_setting(self, name: str, default: str = "") -> str:
        """Return a setting. Raises ServiceError if it is not set, or malformed."""
        shown_name, value = self.find_setting(name)
        value = value or default
        if not value:
            raise ServiceError("not-sent", detail=f"{shown_name} is not set")
        if not re.fullmatch(SETTINGS[name], value):
            raise ServiceError("not-sent", detail=f"malformed {shown_name}")
        return value

    def send_request(
        self,
        method: Method,
        path: str,
        token: str,
        body: Mapping[str, object] | None = None,
        key: str | None = None,
        if_match: str | None = None,
        **query: Unpack[Parameters],
    ) -> Response:
        """Send a request and return the response. Raises ServiceError.

        If no response arrives, or it is a 502, 503 or 504, the request is retried up to
        four times, unless it creates an account or profile without a key: a repeat
        would create another one. Raises ValueError for an unknown field or parameter,
        and for a parameter that is None or empty, because it would count as not sent:
        without a sessionid, for example, end-session ends the session of the token.
        """
        check_names(body or {}, query)
        headers = {
            "Authorization": f"Bearer {token}",
            "X-Appid": self.check_setting("appid"),
            "X-Request-Id": token_hex(16),  # of each try
        }
        if key is not None:
            headers["Idempotency-Key"] = key
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"'
        for name, value in headers.items():
            if not re.fullmatch(HEADER, value):
                raise ServiceError("not-sent", detail=f"malformed {name}")
        request = {"method": method, "params": query, "json": body, "headers": headers}
        default_timeout = "5" if method == "GET" else "15"
        timeout = self.check_setting("timeout", default_timeout)
        creates = path.endswith(("/create-account", "/create-profile"))
        waits = [] if creates and key is None else [*WAITS]
        return self._send_repeatedly(path, float(timeout), request, waits)

    def _send_repeatedly(
        self, path: str, timeout: float, request: dict[str, Any], waits: list[int]
    ) -> Response:
        """Send a request until it succeeds or is refused, or the waits are over."""
        deadline = monotonic() + timeout
        failure: ServiceError | None = None
        while True:
            try:
                return self._send_once(path, deadline, request)
            except ServiceError as error:
                is_lost = error.code == "no-answer"
                if not is_lost and error.status not in (502, 503, 504):
                    raise
                if not failure or not is_lost:
                    failure = error  # a response says more than none
                if waits and error.retry_after.isdecimal():
                    waits[0] = int(error.retry_after)
                if not waits or monotonic() + waits[0] >= deadline:
                    raise failure from None
            sleep(waits.pop(0))

    def _send_once(
        self, path: str, deadline: float, request: dict[str, Any]
    ) -> Response:
        address = self.check_setting("url")
        url = address.rstrip("/") + "/api/" + path
        request_id = request["headers"]["X-Request-Id"]
        seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
        timeout = (min(CONNECT_SECONDS, seconds), seconds)
        session = http_session(os.getpid())
        try:
            # A redirect is not followed, because it would turn a POST into a GET.
            options = {"timeout": timeout, "allow_redirects": False, **request}
            response = session.request(url=url, **options)
        except ValueError:  # the host or the port can't be one
            shown_name, _ = self.find_setting("url")
            detail = f"malformed {shown_name}"
            raise ServiceError("not-sent", detail=detail) from None
        except requests.RequestException as error:
            session.close()  # the other kept connections may be lost, too
            origin = "/".join(address.split("/")[:3])  # the path may be secret
            detail = f"{origin}, {describe_cause(error)}"
            # "from None", because the error's own text may contain the token.
            raise ServiceError("no-answer", None, request_id, detail=detail) from None
        try:
            content: Any = response.json()
        except ValueError:  # it is not JSON
            content = None
        else:
            if response.status_code in (200, 201):
                return response
        if not isinstance(content, dict) or content.get("object") != "error":
            content = {}
        code = content.get("message", "unexpected-answer")
        error_type = ServiceError
        if code in ("sign-in-required", "administrator-required"):
            is_user = path.startswith("user/")
            error_type = SignedOut if is_user else AdministratorTokenError
        raise error_type(
            code,
            response.status_code,
            response.headers.get("X-Request-Id", request_id),
            content.get("reason"),
            content.get("errors", {}),
            response.headers.get("Retry-After", ""),
        )

    def administrate(
        self, method: Method, path: AdministratorPath, **options: Unpack[Options]
    ) -> Response:
        """Send a request with the administrator's token."""
        token = self.check_setting("token")
        return self.send_request(method, f"administrator/{path}", token, **options)

    def accounts(self, limit: int = 100, **query: Unpack[Filter]) -> Iterator[Account]:
        """Yield all accounts, each with its default profile, in the order of their ids.

        The ``externalid`` of an account is your id for the user, or None if it has
        none. With ``accountid``, yield only this one; with ``after``, those after it.
        """
        return walk(self.administrate, "accounts", limit=limit, **query)

    def profiles(self, limit: int = 100, **query: Unpack[Filter]) -> Iterator[Profile]:
        """Yield the profiles of all users, newest first.

        With ``email``, yield those with this address; with ``accountid``, this
        account's.
        """
        return walk(self.administrate, "profiles", limit=limit, **query)

    def sign_up(self, user_id: str, duration: int = DURATION) -> User:
        """Create the account of a user, start a session, and return the User.

        Calling it again is safe, because the same id always gives the same account.
        Raises ServiceError("invalid-idempotency-key") if another user's id has the same
        hash. Then don't call User(user_id), because it would act for that other user.
        """
        self.compute_accountid(user_id)  # raises ValueError before anything is sent
        self.administrate("POST", "create-account", key=user_id)
        return self.sign_in(user_id, duration)

    def sign_in(self, user_id: str, duration: int = DURATION) -> User:
        """Start a session of a user who has signed up, and return the User.

        It lasts ``duration`` seconds, at most a year: use the lifetime of your own
        session. Raises ServiceError("invalid-accountid") if the account was deleted.
        """
        return self.user(user_id, duration=duration)

    def user(
        self,
        user_id: str,
        token: str | None = NOT_GIVEN,
        sessionid: str | None = NOT_GIVEN,
        duration: int = DURATION,
    ) -> User:
        """Return a User of this service, as User() does for the environment's."""
        return User(user_id, token, sessionid, duration, self)

    def compute_accountid(self, user_id: str) -> str:
        """Return the id that the service gives to the account of your user."""
        # HTTP strips whitespace around a header, so "x " and "x" would be one account.
        is_key = isinstance(user_id, str) and re.fullmatch("[ -~]{1,255}", user_id)
        if not is_key or user_id != user_id.strip():
            rule = "must be 1 to 255 printable ASCII characters, trimmed"
            raise ValueError(f"user_id {rule}: {user_id!r}")
        _, appid = self.find_setting("appid")
        return "acct_" + sha256(f"{appid} {user_id}".encode()).hexdigest()[:16]


class EnvironmentService(Service):
    """The service that the environment variables name at each request."""

    def __init__(self) -> None:
        pass

    def __reduce__(self) -> str:
        return "ENVIRONMENT"  # a pickle has its name, not the settings

    def find_setting(self, name: str) -> tuple[str, str]:
        variable = f"PROFILES_{name.upper()}"
        default = "default" if name == "appid" else ""
        return variable, os.environ.get(variable) or default


ENVIRONMENT = EnvironmentService()
send_request = ENVIRONMENT.send_request
administrate = ENVIRONMENT.administrate
accounts = ENVIRONMENT.accounts
profiles = ENVIRONMENT.profiles
sign_up = ENVIRONMENT.sign_up
sign_in = ENVIRONMENT.sign_in
compute_accountid = ENVIRONMENT.compute_accountid


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


class KeepAliveAdapter(HTTPAdapter):
    """Probes idle connections each minute, so that no NAT forgets them."""

    def init_poolmanager(self, *values: Any, **options: Any) -> None:
        super().init_poolmanager(*values, socket_options=SOCKET_OPTIONS, **options)


@cache
def http_session(pid: int) -> requests.Session:
    """Return the connections of a process, which a forked one must not use."""
    # uWSGI forks without calling the hooks of os.register_at_fork().
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, KeepAliveAdapter(pool_maxsize=POOL_SIZE))
    # Without an auth, requests would replace the token with a password from ~/.netrc.
    session.auth = lambda request: request
    # A proxy's cookie for one user would be sent for all others, too.
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return session


def describe_cause(error: BaseException) -> str:
    """Return what the system says about the innermost cause, or the cause's class."""
    for cause in (error.__cause__, *error.args):
        if isinstance(cause, BaseException):
            return describe_cause(cause)
    return getattr(error, "strerror", None) or type(error).__name__


@overload
def read_page(
    send: Send, path: Literal["accounts"], **query: Unpack[Query]
) -> Page[Account]: ...


@overload
def read_page(
    send: Send, path: Literal["profiles"], **query: Unpack[Query]
) -> Page[Profile]: ...


@overload
def read_page(
    send: Send, path: Literal["sessions"], **query: Unpack[Query]
) -> Page[Session]: ...


def read_page(send: Send, path: ListPath, **query: Unpack[Query]) -> Page[Any]:
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


@overload
def walk(
    send: Send, path: Literal["accounts"], **query: Unpack[Query]
) -> Iterator[Account]: ...


@overload
def walk(
    send: Send, path: Literal["profiles"], **query: Unpack[Query]
) -> Iterator[Profile]: ...


@overload
def walk(
    send: Send, path: Literal["sessions"], **query: Unpack[Query]
) -> Iterator[Session]: ...


def walk(send: Send, path: ListPath, **query: Unpack[Query]) -> Iterator[Any]:
    """Yield every row of a list, as in walk(administrate, "sessions", limit=100)."""
    rows, next_query = read_page(send, path, **query)
    yield from rows
    while next_query:
        rows, next_query = read_page(send, path, **next_query)
        yield from rows


def to_fields(profile: Object) -> dict[str, str | None]:
    """Return the values of a profile as fields, of which you can change some.

    For example, user.save_profile({**to_fields(profile), "phone": "+44 20 7946 0958"}).
    """
    fields = {}
    for name in FIELDS:
        property_name = re.sub("-(.)", lambda match: match[1].upper(), name)
        fields[name] = profile[property_name]
    return fields | (profile["fields"] or {})


def is_stored(name: str, sent: str | None, stored: str | None) -> bool:
    """Return whether a profile has the value that was sent for a field."""
    if name == "dob" and sent and not re.fullmatch(ISO_DATE, sent):
        return stored is not None  # the service has rewritten the date
    return stored == (sent or None)


def read_stored(fields: Fields, response: Response) -> Profile:
    """Return the profile of a response, in which the fields have been saved.

    Raises ServiceError("not-stored") if it has other values, because the service
    ignores fields that aren't in its settings.
    """
    profile: Profile = response.json()
    stored = to_fields(profile)
    errors = {}
    for name, value in fields.items():
        if name != "default" and not is_stored(name, value, stored.get(name)):
            errors[name] = "not-stored"
    if errors:
        raise ServiceError(
            "not-stored",
            response.status_code,
            response.headers.get("X-Request-Id"),
            errors=errors,
            detail="the service's settings lack these fields, the rest was stored",
            profile=profile,
        )
    return profile


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

    Give the ``token`` and the ``sessionid`` that you have stored. If both are None,
    because your own session lost them, this raises SignedOut. If neither is given, it
    signs the user in, as sign_in() does. ``user.accountid`` is the id of the account.
    """

    def __init__(
        self,
        user_id: str,
        token: str | None = NOT_GIVEN,
        sessionid: str | None = NOT_GIVEN,
        duration: int = DURATION,
        service: Service = ENVIRONMENT,
    ) -> None:
        self.service = service
        self.accountid = service.compute_accountid(user_id)
        self.duration = duration
        if bool(token) != bool(sessionid):
            raise ValueError("the token and its sessionid belong together")
        if token and sessionid:
            self.token, self.sessionid = token, sessionid
        elif token is NOT_GIVEN and sessionid is NOT_GIVEN:
            self.sign_in()
        else:
            raise SignedOut("sign-in-required", detail="the User has no token")

    def sign_in(self) -> None:
        """Start a session, and use its token from now on."""
        body = {"duration": self.duration}
        response = self.service.administrate(
            "POST", "create-session", accountid=self.accountid, body=body
        )
        session = response.json()
        self.token = session["token"]
        self.sessionid = session["sessionid"]

    def send(
        self, method: Method, path: UserPath, **options: Unpack[Options]
    ) -> Response:
        """Send a request of the user. Raises SignedOut."""
        path_of_user = f"user/{path}"
        return self.service.send_request(method, path_of_user, self.token, **options)

    def call(self, method: Method, path: UserPath, **options: Unpack[Options]) -> Any:
        """Send a request of the user; return the object of the response."""
        return self.send(method, path, **options).json()

    def account(self) -> Account:
        """Return the account; its ``profile`` is the default profile, or None."""
        account: Account = self.call("GET", "account", accountid=self.accountid)
        return account

    def profile(self, profileid: str) -> Profile:
        """Return a profile of the user."""
        profile: Profile = self.call("GET", "profile", profileid=profileid)
        return profile

    def profiles(self, limit: int = 100) -> Iterator[Profile]:
        """Yield the profiles, newest first."""
        return walk(self.send, "profiles", accountid=self.accountid, limit=limit)

    def save_profile(
        self, fields: Fields, profileid: str | None = None, if_match: str | None = None
    ) -> Profile:
        """Save the fields in a profile and return it.

        Without a profileid, this is the default profile. If there is none, the profile
        with the key ``first`` is created, unless it exists, and becomes the default.

        ``if_match`` is the ``updatedAt`` of the profile that the user has edited, or ""
        if your form showed no profile. If the profile has changed since then, nothing
        is saved, and this raises ServiceError("profile-changed"): show it again.

        Raises ServiceError("not-stored") if fields that you save or clear aren't in the
        service's settings. Its ``errors`` name them. The other fields are stored, and
        its ``profile`` is the result.
        """
        if profileid is None:
            default = self.account()["profile"]
            if default is None:
                return self._save_first_profile(fields, if_match)
            profileid = default["profileid"]
        response = self.send(
            "PATCH",
            "update-profile",
            profileid=profileid,
            body=fields,
            if_match=if_match,
        )
        return read_stored(fields, response)

    def _save_first_profile(self, fields: Fields, if_match: str | None) -> Profile:
        """Save the profile with the key ``first``, and make it the default."""
        if if_match:
            raise ServiceError("profile-changed", 412)  # the edited one was deleted
        body = {**fields, "default": "true"}
        response = self._send_new_profile(body, "first")
        if response.status_code == 201:
            return read_stored(fields, response)
        profileid = response.json()["profileid"]  # of the profile that existed
        self.set_default_profile(profileid)
        return self.save_profile(fields, profileid, if_match)

    def create_profile(self, fields: Fields, key: str) -> Profile:
        """Create a profile, or return the one that was created with the same key.

        Use a new UUID as the key of each profile. If it creates the profile, this
        raises ServiceError("not-stored") for the same reason as save_profile().
        """
        if key is None:
            raise ValueError("key has no value")
        response = self._send_new_profile(fields, key)
        if response.status_code == 201:
            return read_stored(fields, response)
        profile: Profile = response.json()
        return profile

    def _send_new_profile(self, body: Fields, key: str) -> Response:
        accountid = self.accountid
        return self.send(
            "POST", "create-profile", accountid=accountid, body=body, key=key
        )

    def set_default_profile(self, profileid: str) -> Account:
        """Make a profile the default; return the account."""
        account: Account = self.call(
            "PATCH", "set-default-profile", profileid=profileid
        )
        return account

    def delete_profile(self, profileid: str) -> None:
        """Delete a profile. If it was the default, the user has none afterwards."""
        with ignore_code("invalid-profileid"):
            self.send("DELETE", "delete-profile", profileid=profileid)

    def sessions(self, limit: int = 100) -> Iterator[Session]:
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

    def sign_out_elsewhere(self) -> None:
        """End the user's other running sessions."""
        for session in list(self.sessions()):
            if session["sessionid"] != self.sessionid:
                self.end_session(session["sessionid"])

    def sign_out_everywhere(self) -> None:
        """End all sessions of the user with this id, whose token isn't used.

        Discard the User: another call raises SignedOut.
        """
        self.service.administrate("PATCH", "end-sessions", accountid=self.accountid)

    def delete(self) -> None:
        """Delete the account of the user with this id, whose token isn't used.

        Its profiles and sessions are deleted, too.
        """
        with ignore_code("invalid-accountid"):
            self.service.administrate(
                "DELETE", "delete-account", accountid=self.accountid
            )
