"""A client for Profiles in Python. Copy it into your product and adapt it.

It reads these environment variables, of which the first two are required:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a request may take with its retries, by default 30

You identify a user by your id for the user:

    user = sign_up("0f8fad5b-d9cb-469f-a165-70867728950e")  # once
    user.save_profile({"contact-email": "ada@example.com", "full-name": "Ada King"})

Keep user.token in your own session, and use it in later requests:

    user = User("0f8fad5b-d9cb-469f-a165-70867728950e", token)

If a call raises SignedOut, end your own session too, and show your sign-in page.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl

import requests
from requests import Response

__version__ = "3.3.0"  # of the service that this file comes with

Object = dict[str, Any]  # an account, a profile or a session, as API.md shows it
Fields = Mapping[str, str | None]  # such as {"full-name": "Ada King"}

DURATION = 28_800  # seconds that a user's session lasts
WAITS = (1, 2, 4)  # seconds before each retry, if the response has no Retry-After
TRY_SECONDS = 15  # seconds to wait for one response

http = requests.Session()
# Without an auth, requests would replace the token with a password from ~/.netrc.
http.auth = lambda request: request


class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: the response is not the service's, but a proxy's page, say.
    no-answer: there was no response, so there is no status either.
    not-sent: the address, application id or token is malformed, so nothing was sent.
    """

    def __init__(
        self,
        code: str,
        status: int | None = None,
        request_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(code, status, request_id, reason)
        self.code = code
        self.status = status
        self.request_id = request_id  # lets the operator find the request in the log
        self.reason = reason  # of a 401: ended, expired, or None for an unknown token
        self.retry_after = ""
        self.errors: dict[str, str] = {}  # of a profile's wrong fields: each one's code


class AdministratorTokenError(ServiceError):
    """PROFILES_TOKEN or PROFILES_APPID is wrong. Tell the operator, not the user."""


class SignedOut(ServiceError):
    """The user must sign in again, because the session was ended or is unknown.

    If the account was deleted, the code is invalid-accountid.
    """


def send(
    method: str,
    path: str,
    token: str,
    body: Mapping[str, object] | None = None,
    key: str | None = None,
    if_match: str | None = None,
    **query: str | int,
) -> Response:
    """Send a request and return the response. Raises ServiceError.

    After a 502, 503 or 504, or without a response, the request is sent again. Raises
    ValueError if a value of the query is None or empty: without an accountid, for
    example, an administrator's list has the rows of all users.
    """
    for name, value in query.items():
        if value is None or value == "":
            raise ValueError(f"{name} has no value")
    headers = {"Authorization": f"Bearer {token}", "X-Appid": appid()}
    if key is not None:
        headers["Idempotency-Key"] = key
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"'
    request = {"method": method, "params": query, "json": body, "headers": headers}
    deadline = monotonic() + float(os.environ.get("PROFILES_TIMEOUT") or 30)
    for wait in WAITS:
        try:
            return send_once(path, deadline, request)
        except ServiceError as error:
            if error.code != "no-answer" and error.status not in (502, 503, 504):
                raise
            if error.retry_after.isdecimal():
                wait = int(error.retry_after)
            if monotonic() + wait >= deadline:
                raise
        sleep(wait)
    return send_once(path, deadline, request)


def appid() -> str:
    return os.environ.get("PROFILES_APPID") or "default"


def required_variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"the environment variable {name} is not set")
    return value


def send_once(path: str, deadline: float, request: dict[str, Any]) -> Response:
    url = required_variable("PROFILES_URL").rstrip("/") + "/api/" + path
    seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
    try:
        # A redirect is not followed, because it would turn a POST into a GET.
        response = http.request(
            url=url, timeout=seconds, allow_redirects=False, **request
        )
    except ValueError:  # its message may contain the token
        raise ServiceError("not-sent") from None
    except requests.RequestException as error:
        raise ServiceError("no-answer") from error
    try:
        content = response.json()
        if response.status_code in (200, 201):
            return response
        code = content["message"]
    except (ValueError, TypeError, KeyError):
        code = "unexpected-answer"
        content = {}
    failure = ServiceError(
        code,
        response.status_code,
        response.headers.get("X-Request-Id"),
        content.get("reason"),
    )
    failure.retry_after = response.headers.get("Retry-After", "")
    failure.errors = content.get("errors", {})
    raise failure


def administrate(method: str, path: str, **options: Any) -> Response:
    """Send a request with the administrator's token."""
    token = required_variable("PROFILES_TOKEN")
    try:
        return send(method, f"administrator/{path}", token, **options)
    except ServiceError as error:
        if error.code in ("sign-in-required", "administrator-required"):
            raise AdministratorTokenError(*error.args) from error
        raise


def walk(
    send: Callable[..., Response], path: str, **query: str | int
) -> Iterator[Object]:
    """Yield every row of a list, as in walk(administrate, "profiles", limit=100).

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


def accounts(limit: int = 100) -> Iterator[Object]:
    """Yield all accounts, each with its default profile, in the order of their ids."""
    return walk(administrate, "accounts", limit=limit)


def sign_up(user_id: str, duration: int = DURATION) -> "User":
    """Create the account of a user, start a session, and return the User.

    Calling it again is safe, because the same id always gives the same account.
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


class User:
    """A user who has signed up, by your id for the user.

    ``token`` is one that you have kept, and ``sessionid`` that of its session. Without
    a token, this starts a session of ``duration`` seconds; if the account was deleted,
    it raises ServiceError("invalid-accountid").

    When the session has expired, the next call starts another one, so ``user.token``
    and ``user.sessionid`` change.
    """

    def __init__(
        self,
        user_id: str,
        token: str | None = None,
        duration: int = DURATION,
        sessionid: str | None = None,
    ) -> None:
        self.accountid = compute_accountid(user_id)
        self.duration = duration
        self.sessionid = sessionid
        if token is None:
            self.sign_in()
        else:
            self.token = token

    def sign_in(self) -> None:
        body = {"duration": self.duration}
        session = self.administrate("POST", "create-session", body=body)
        self.token = session["token"]
        self.sessionid = session["sessionid"]

    def administrate(self, method: str, path: str, **options: Any) -> Any:
        """Send an administrator's request about this account; return its JSON."""
        return administrate(method, path, accountid=self.accountid, **options).json()

    def send(self, method: str, path: str, **options: Any) -> Response:
        """Send a request of the user. If the session has expired, renew it and resend.

        Raises SignedOut.
        """
        try:
            return self.send_with_token(method, path, **options)
        except SignedOut as error:
            # An unknown token: its account or session was deleted, or PROFILES_APPID
            # is wrong, which raises AdministratorTokenError here.
            if error.reason is None and not self.administrate("GET", "accounts"):
                raise SignedOut("invalid-accountid", 404) from error
            if error.reason != "expired":
                raise
        self.sign_in()
        return self.send_with_token(method, path, **options)

    def send_with_token(self, method: str, path: str, **options: Any) -> Response:
        try:
            return send(method, f"user/{path}", self.token, **options)
        except ServiceError as error:
            if error.code != "sign-in-required":
                raise
            raise SignedOut(*error.args) from error

    def call(self, method: str, path: str, **options: Any) -> Object:
        """Send a request of the user, and return the object of its response."""
        content: Object = self.send(method, path, **options).json()
        return content

    def account(self) -> Object:
        """Return the account; its ``profile`` is the default profile, or None."""
        return self.call("GET", "account", accountid=self.accountid)

    def profile(self, profileid: str) -> Object:
        return self.call("GET", "profile", profileid=profileid)

    def profiles(self, limit: int = 100) -> Iterator[Object]:
        """Yield the profiles, newest first."""
        return walk(self.send, "profiles", accountid=self.accountid, limit=limit)

    def save_profile(
        self, fields: Fields, profileid: str | None = None, if_match: str | None = None
    ) -> Object:
        """Save the fields in a profile and return it.

        Without a profileid, this is the default profile or, if there is none, the
        newest one. If the user has no profile, create one and make it the default.

        With ``if_match``, the ``updatedAt`` of the profile that the user has edited,
        nothing is saved if the profile was changed after that. This raises
        ServiceError("profile-changed"): show the user the profile as it is now.
        """
        profileid = profileid or self.find_profileid()
        if not profileid:
            if if_match is not None:
                raise ServiceError("profile-changed", 412)  # it was deleted
            profile = self.create_profile({**fields, "default": "true"}, "first")
            if is_saved(profile, fields):
                return profile
            # A concurrent request created it first, and these values were ignored.
            profileid = profile["profileid"]
        options = {"profileid": profileid, "if_match": if_match}
        return self.call("PATCH", "update-profile", body=fields, **options)

    def find_profileid(self) -> str | None:
        """Return the id of the default profile, else of the newest one, else None."""
        profileid: str | None = self.account()["profileid"]
        if profileid:
            return profileid
        newest = next(self.profiles(limit=1), None)
        return newest["profileid"] if newest else None

    def create_profile(self, fields: Fields, key: str) -> Object:
        """Create a profile, or return the one that was created with the same key.

        Use a new UUID as the key of each profile.
        """
        query = {"accountid": self.accountid}
        return self.call("POST", "create-profile", body=fields, key=key, **query)

    def set_default_profile(self, profileid: str) -> Object:
        """Make a profile the default; return the account."""
        return self.call("PATCH", "set-default-profile", profileid=profileid)

    def delete_profile(self, profileid: str) -> None:
        try:
            self.send("DELETE", "delete-profile", profileid=profileid)
        except ServiceError as error:
            if (error.code, error.status) != ("invalid-profileid", 404):
                raise  # otherwise it is deleted already

    def sign_out(self) -> None:
        """End this token's session. Discard the User: another call raises SignedOut."""
        try:
            send("PATCH", "user/end-session", self.token)
        except ServiceError as error:
            if error.code not in ("sign-in-required", "invalid-sessionid"):
                raise  # otherwise the session has ended, or was deleted

    def sign_out_everywhere(self) -> None:
        """End all sessions. Discard the User: another call raises SignedOut."""
        self.administrate("PATCH", "end-sessions")

    def delete(self) -> None:
        """Delete the account with its profiles and sessions."""
        try:
            self.administrate("DELETE", "delete-account")
        except ServiceError as error:
            if error.code != "invalid-accountid":
                raise  # otherwise it is deleted already


def is_saved(profile: Object, fields: Fields) -> bool:
    """Return whether the profile has these values. An empty one is stored as null."""
    for field, value in fields.items():
        if profile.get(property_name(field)) != (value or None):
            return False
    return True


def property_name(field: str) -> str:
    """Return the property of a field, such as fullName of full-name."""
    first, *words = field.split("-")
    return first + "".join(word.title() for word in words)
