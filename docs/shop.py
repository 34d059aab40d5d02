"""A shop that keeps its users' profiles in the service: an example of a product.

Start the service, paste the export lines that flask demo prints, and run:

    pip install requests && flask --app docs/shop.py run --port 5050

Its users are in the file shop.db. The one named by SHOP_ADMINISTRATOR can list them.
"""

import os
import sqlite3
from secrets import token_urlsafe

import client
from flask import Flask, g, redirect, render_template_string, request, session
from flask.typing import ResponseReturnValue
from werkzeug.security import check_password_hash, generate_password_hash

DURATION = 30 * 86_400  # seconds until a user must sign in again

app = Flask(__name__)
# Users can read their token in the cookie. Lax: other sites' forms are sent without it.
app.config.update(
    SECRET_KEY=token_urlsafe(),
    SESSION_COOKIE_SAMESITE="Lax",
    PERMANENT_SESSION_LIFETIME=DURATION,
)
db = sqlite3.connect("shop.db", isolation_level=None, check_same_thread=False)
# The service's lists have the accountid of a user, so it needs an index: UNIQUE is one.
db.execute("""CREATE TABLE IF NOT EXISTS users (name TEXT UNIQUE CHECK (name <> ''),
    password TEXT, user_id TEXT, accountid TEXT UNIQUE)""")
PAGE_SIZE = 20  # users
FIELDS = {"full-name": "fullName", "contact-email": "contactEmail"}
MESSAGES = {
    "invalid-full-name": "Please enter your name.",
    "invalid-full-name-length": "This name is too long or too short.",
    "invalid-contact-email": "Please enter a valid e-mail address.",
}
LAYOUT = """<!doctype html><title>Shop</title>
{% if session %}<form method="post" action="/devices"><a href="/">My profile</a>
<a href="/devices">My devices</a> <a href="/users">Users</a>
<button name="sessionid" value="{{ g.user.sessionid }}">Sign out</button></form>
{% endif %}<p>{{ message }}</p>"""
SIGN_IN = """<h1>Shop</h1><form method="post" action="/sign-in">
Name <input name="name" value="{{ form.name }}">
Password <input name="password" type="password">
<button>Sign in</button> <button name="is_new" value="yes">Sign up</button></form>"""
PROFILE = """<h1>My profile</h1><form method="post">
<input type="hidden" name="updatedAt" value="{{ (form or stored).updatedAt }}">
{% for field, property in fields.items() %}<p>{{ field | replace("-", " ") }}
<input name="{{ field }}" value="{{ form[field] if form else stored[property] or '' }}">
{{ messages[errors[field]] }}{% if form and stored %}
(now {{ stored[property] }}){% endif %}</p>{% endfor %}
<button>Save</button></form>
<form method="post" action="/leave"><button>Delete my account</button></form>"""
DEVICES = """<h1>My devices</h1><form method="post">{% for each in g.user.sessions() %}
<p>Since {{ each.createdAt }} <button name="sessionid" value="{{ each.sessionid }}">
Sign out</button>{% if each.sessionid == g.user.sessionid %} this device{% endif %}</p>
{% endfor %}<button>Sign out on all devices</button></form>"""
USERS = """<h1>Users</h1><form><input name="email"> <button>Find e-mail</button></form>
{% for user, row in users if user %}{% set profile = row.profile or row %}
<p>{{ user[0] }}: {{ profile.fullName }}, {{ profile.contactEmail }}</p>{% endfor %}
{% if next_page %}<a href="{{ url_for('users', **next_page) }}">Next page</a>{% endif %}
"""


def page(body: str, message: str = "", **data: object) -> str:
    data = {"form": request.form, "errors": {}, "messages": MESSAGES, **data}
    return render_template_string(LAYOUT + body, message=message, fields=FIELDS, **data)


@app.before_request
def find_user() -> None:
    if session:
        g.user = client.User(session["user_id"], session["token"], session["sessionid"])
    elif request.endpoint != "sign_in":
        raise client.SignedOut("sign-in-required")


@app.errorhandler(client.ServiceError)
def show_error(error: client.ServiceError) -> ResponseReturnValue:
    if isinstance(error, client.SignedOut) or error.code == "invalid-accountid":
        session.clear()
        return page(SIGN_IN, "Please sign in, or sign up."), 401
    app.logger.error(error)
    # A form is shown again with what was typed into it.
    forms = {"sign_in": SIGN_IN, "profile": PROFILE} if request.form else {}
    body = forms.get(request.endpoint or "", "")
    return page(body, "Sorry, this doesn't work right now. Please try again soon."), 503


@app.post("/sign-in")
def sign_in() -> ResponseReturnValue:
    name, password = request.form["name"].strip(), request.form["password"]
    if not name or not password:
        return page(SIGN_IN, "Please enter a name and a password."), 400
    if is_new := "is_new" in request.form:
        new_id = token_urlsafe()
        ids = [new_id, client.compute_accountid(new_id)]
        row = [name, generate_password_hash(password), *ids]
        db.execute("INSERT OR IGNORE INTO users VALUES (?, ?, ?, ?)", row)
    select = "SELECT password, user_id FROM users WHERE name = ?"
    password_hash, user_id = db.execute(select, [name]).fetchone() or ("", "")
    if not check_password_hash(password_hash, password):
        message = "This name is taken." if is_new else "Wrong name or password."
        return page(SIGN_IN, message), 401
    # Signing in creates no account, because the operator may have deleted it.
    start_session = client.sign_up if is_new else client.sign_in
    g.user = user = start_session(user_id, DURATION)
    session.permanent = True  # keep the cookie when the browser is closed
    session.update(name=name, user_id=user_id)
    session.update(token=user.token, sessionid=user.sessionid)
    return redirect("/")


@app.route("/", methods=["GET", "POST"])
def profile() -> str:
    if request.method == "GET":
        return page(PROFILE, stored=g.user.account()["profile"] or {})
    fields = {field: request.form[field].strip() for field in FIELDS}
    try:
        saved = g.user.save_profile(fields, if_match=request.form["updatedAt"])
        return page(PROFILE, "Saved.", stored=saved, form={})
    except client.ServiceError as error:
        if error.code == "profile-changed":
            stored = g.user.account()["profile"] or {}
            form = {**fields, "updatedAt": stored.get("updatedAt", "")}
            message = "The profile has changed meanwhile. Save again to replace it."
            return page(PROFILE, message, stored=stored, form=form)
        if error.code == "not-stored" or FIELDS.keys().isdisjoint(error.errors):
            raise
        return page(PROFILE, "Nothing was saved.", errors=error.errors)


@app.route("/devices", methods=["GET", "POST"])
def devices() -> str:
    if "sessionid" in request.form:
        g.user.end_session(request.form["sessionid"])
    elif request.method == "POST":
        g.user.sign_out_everywhere()
    return page(DEVICES)


@app.post("/leave")
def leave() -> ResponseReturnValue:
    g.user.delete()
    db.execute("DELETE FROM users WHERE user_id = ?", [session["user_id"]])
    return redirect("/")


@app.get("/users")
def users() -> ResponseReturnValue:
    if session["name"] != os.environ.get("SHOP_ADMINISTRATOR"):
        return page("", "This page is for the administrator."), 403
    names = ["email", "after"]
    query = {name: request.args[name] for name in names if request.args.get(name)}
    path: client.ListPath = "profiles" if "email" in query else "accounts"
    rows, next_page = client.read_page(
        client.administrate, path, limit=PAGE_SIZE, **query
    )
    select = "SELECT name FROM users WHERE accountid = ?"
    users = [(db.execute(select, [row["accountid"]]).fetchone(), row) for row in rows]
    return page(USERS, users=users, next_page=next_page)
