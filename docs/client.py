"""A client of Profiles in Python. Copy it, and change it as you like.

Set PROFILES_URL to the address of the service, such as http://127.0.0.1:8000, and
PROFILES_TOKEN to the token of an administrator. You know a user by your own id:

    user = User("0f8fad5b-d9cb-469f-a165-70867728950e")
    user.save_profile({"contact-email": "ada@example.com", "full-name": "Ada King"})

Keep user.token in your own session of the user, so that the user signs in once.
"""

import os
import re
from time import monotonic, sleep
from urllib.parse import parse_qsl

import requests
from requests.exceptions import ChunkedEncodingError

DURATION = 28_800  # how long a user's session lasts, in seconds
WAITS = (1, 2, 4)  # seconds before each repeat, if the answer has no Retry-After
TRY_SECONDS = 15  # how long to wait for one answer
TOTAL_SECONDS = 30  # how long to wait for a request with its repeats

http = requests.Session()
# Without an auth, requests would replace the token with a password from ~/.netrc.
http.auth = lambda request: request


class ServiceError(Exception):
    """A request failed. The code is one of API.md's, or one of these:

    unexpected-answer: it is not the service's, but a proxy's page, for example.
    no-answer: there is no status either.
    """

    def __init__(self, code, status=None, request_id=None, retry_after=None):
        super().__init__(code, status, request_id)
        self.code = code
        self.status = status
        self.request_id = request_id  # the operator finds the request by it
        self.retry_after = retry_after or ""


class AdministratorTokenError(ServiceError):
    """PROFILES_TOKEN is refused. Tell the operator, and do not let the user sign in."""


def send(method, path, token, body=None, key=None, **query):
    """Send a request and return the response. Raises ServiceError.

    After a 502, 503 or 504, or without an answer, the same request is sent again.
    """
    headers = {"Authorization": f"Bearer {token}"}
    if key is not None:
        headers["Idempotency-Key"] = key
    request = {"method": method, "params": query, "json": body, "headers": headers}
    deadline = monotonic() + TOTAL_SECONDS
    for wait in WAITS:
        try:
            return send_once(path, deadline, request)
        except ServiceError as error:
            if error.status not in (None, 502, 503, 504):
                raise
            if error.retry_after.isdecimal():
                wait = int(error.retry_after)
            if monotonic() + wait >= deadline:
                raise
        sleep(wait)
    return send_once(path, deadline, request)


def send_once(path, deadline, request):
    url = os.environ["PROFILES_URL"] + "/api/" + path
    seconds = min(TRY_SECONDS, max(0.1, deadline - monotonic()))
    try:
        # A redirect is not followed, since it would make a GET of a POST.
        answer = http.request(
            url=url, timeout=seconds, allow_redirects=False, **request
        )
    except (requests.ConnectionError, requests.Timeout, ChunkedEncodingError) as error:
        raise ServiceError("no-answer") from error
    try:
        content = answer.json()
        if answer.status_code in (200, 201):
            return answer
        code = content["message"]
    except (ValueError, TypeError, KeyError):
        code = "unexpected-answer"
    request_id = answer.headers.get("X-Request-Id")
    retry_after = answer.headers.get("Retry-After")
    raise ServiceError(code, answer.status_code, request_id, retry_after)


def administrate(method, path, **options):
    """Send a request with the token of the administrator."""
    try:
        token = os.environ["PROFILES_TOKEN"]
        return send(method, f"administrator/{path}", token, **options)
    except ServiceError as error:
        if error.code in ("sign-in-required", "administrator-required"):
            raise AdministratorTokenError(*error.args) from error
        raise


def walk(send, path, **query):
    """Yield every row of a listing, as in walk(administrate, "profiles", limit=100)."""
    while True:
        response = send("GET", path, **query)
        yield from response.json() or []
        if "next" not in response.links:
            return
        link = response.links["next"]["url"]
        query = dict(parse_qsl(link.partition("?")[2]))


class User:
    """A user with your own id. The first time, the account is created.

    ``token`` is one that you have kept; without it, the user signs in. ``duration`` is
    that of a new session, in seconds.
    """

    def __init__(self, user_id, token=None, duration=DURATION):
        # HTTP removes outer blanks: "x " and "x" would be one account.
        is_key = isinstance(user_id, str) and re.fullmatch("[ -~]{1,255}", user_id)
        if not is_key or user_id != user_id.strip():
            raise ValueError(f"not 1 to 255 ASCII characters, stripped: {user_id!r}")
        account = administrate("POST", "create-account", key=user_id).json()
        self.accountid = account["accountid"]
        self.duration = duration
        self.token = token
        if token is None:
            self.sign_in()

    def sign_in(self):
        body = {"duration": self.duration}
        self.token = self.administrate("POST", "create-session", body=body)["token"]

    def administrate(self, method, path, **options):
        """Send an administrator's request about this account."""
        return administrate(method, path, accountid=self.accountid, **options).json()

    def send(self, method, path, **options):
        """Send a request of the user; if the token has expired, with a new one."""
        try:
            return send(method, f"user/{path}", self.token, **options)
        except ServiceError as error:
            if error.code != "sign-in-required":
                raise
        self.sign_in()
        return send(method, f"user/{path}", self.token, **options)

    def account(self):
        """Return the account. Its profileid is that of the default profile."""
        return self.send("GET", "account", accountid=self.accountid).json()

    def profile(self, profileid):
        return self.send("GET", "profile", profileid=profileid).json()

    def profiles(self, limit=100):
        """Yield the profiles, newest first."""
        return walk(self.send, "profiles", accountid=self.accountid, limit=limit)

    def save_profile(self, fields):
        """Update the newest profile, or create the first one; return it."""
        profile = next(self.profiles(limit=1), None)
        if not profile:
            query = {"accountid": self.accountid}
            body = {**fields, "default": "true"}
            profile = self.send(
                "POST", "create-profile", body=body, key="first", **query
            ).json()
            if is_saved(profile, fields):
                return profile
            # Another request created it before, and these values were ignored.
        query = {"profileid": profile["profileid"]}
        return self.send("PATCH", "update-profile", body=fields, **query).json()

    def sign_out_everywhere(self):
        """End all sessions. A kept User would begin another one, so forget it."""
        self.administrate("PATCH", "end-sessions")

    def delete(self):
        try:
            self.administrate("DELETE", "delete-account")
        except ServiceError as error:
            if error.code != "invalid-accountid":  # it is deleted already
                raise


def is_saved(profile, fields):
    """Return whether the profile has these values. What is not configured is null."""
    for name, value in fields.items():
        first, *words = name.split("-")
        stored = profile.get(first + "".join(word.title() for word in words))
        if stored not in (None, value):
            return False
    return True
