/* A client for Profiles 6.2.0 in JavaScript. Copy it into your product and
adapt it; for TypeScript, copy client.d.mts, too. It needs Node 20 or newer.

By default, it reads these environment variables, of which the first two are
required:

- PROFILES_URL: the address of the service, such as http://127.0.0.1:8000
- PROFILES_TOKEN: an administrator's token
- PROFILES_APPID: the service's APPID, by default "default"
- PROFILES_TIMEOUT: how many seconds a request may take, including its retries,
  by default 5 for a GET and 15 for a change. Choose less than your web server
  gives a page, or more for a nightly job. A method that sends several requests
  can take longer.

To configure it by values, or to use several services, create a Service, and
call service.signUp() and service.user() instead of signUp() and new User().

You identify a user by your own id for the user:

    const user = await signUp(userId); // once
    const user = await signIn(userId); // each time the user signs in
    const user = new User(userId, token, sessionid); // in later requests

Store user.token and user.sessionid in your own session. If a call throws
SignedOut, end your own session too, and show your sign-in page. */

import { createHash, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

const DURATION = 2_592_000; // seconds that a user's session lasts: 30 days
const WAITS = [0, 1, 2, 4]; // seconds before each retry, without a Retry-After
const TRY_SECONDS = 15; // seconds that one response may take

const FIELDS = `full-name contact-email display-email display-name company-name
  dob phone occupation location website`.split(/\s+/);
// The service ignores unknown fields, so sendRequest() refuses them.
const BODY_NAMES = [...FIELDS, "default", "duration"];
// A field that the service's settings add, at most 64 characters long.
const OWN_FIELD = /^x-[a-z0-9]+(-[a-z0-9]+)*$/;
const ISO_DATE = /^[0-9]{4}-[0-9]{2}-[0-9]{2}$/;
const PARAMETERS = `accountid profileid sessionid email active limit offset
  after all`.split(/\s+/);

// A URL without password or query.
const ADDRESS =
  /^https?:\/\/([\w-]+(\.[\w-]+)*\.?|\[[0-9A-Fa-f:.]+\])(:\d*)?(\/[^@?#\s]*)?$/;
const HEADER = /^[!-~]([ -~]*[!-~])?$/;
const SETTINGS = {
  url: ADDRESS,
  token: HEADER,
  appid: HEADER,
  timeout: /^\d+(\.\d+)?$/,
};

/**
 * A request failed. The code is one of API.md's, or one of these:
 *
 * unexpected-answer: the response is a proxy's page, say, not the service's.
 * no-answer: there was no response, so there is no status either.
 * not-sent: a setting is missing, or a setting, token or key is malformed.
 * not-stored: the service's settings lack the fields that are named in errors.
 * All other fields were stored: profile is the profile as it is now.
 */
export class ServiceError extends Error {
  #profile; // private, so that console.error() doesn't print it

  constructor(
    code,
    {
      status = null,
      requestId = null,
      reason = null,
      errors = {},
      retryAfter = "",
      detail = "",
      profile = null,
    } = {},
  ) {
    const parts = [code, detail];
    if (status) {
      parts.push(`status ${status}`);
    }
    for (const [name, fieldCode] of Object.entries(errors)) {
      parts.push(`${name}: ${fieldCode}`);
    }
    if (requestId) {
      parts.push(`request ${requestId}`);
    }
    super(parts.filter((part) => part).join(", "));
    this.name = "ServiceError"; // also after a bundler has minified this file
    this.code = code;
    this.status = status;
    this.requestId = requestId; // finds each try in the service's log
    this.reason = reason; // of a 401: ended, expired, or null if unknown
    this.errors = errors; // each wrong field's code
    this.retryAfter = retryAfter;
    this.detail = detail; // of no-answer, not-sent, not-stored: what went wrong
    this.#profile = profile;
  }

  /** The profile, if the code is not-stored, or null. */
  get profile() {
    return this.#profile;
  }
}

/**
 * The service's token or appid is wrong. Tell the operator, not the user.
 */
export class AdministratorTokenError extends ServiceError {
  name = "AdministratorTokenError";
}

/** The user must sign in again: the session ended, expired or was deleted. */
export class SignedOut extends ServiceError {
  name = "SignedOut";
}

/**
 * A service whose settings are arguments, not environment variables.
 *
 * They mean what the variables of the same names mean: `timeout`, for example,
 * is PROFILES_TIMEOUT, in seconds.
 */
export class Service {
  #settings;

  constructor({ url, token, appid = "default", timeout = null } = {}) {
    this.#settings = { url, token, appid, timeout };
  }

  /** Return the name of a setting, for messages, and its value. */
  findSetting(name) {
    return [name, this.#settings[name]];
  }

  /** Return a setting as a string. Throws ServiceError, which names it. */
  #checkSetting(name, defaultValue = "") {
    const [shownName, setting] = this.findSetting(name);
    const value = String(setting ?? defaultValue);
    if (!value) {
      throw new ServiceError("not-sent", { detail: `${shownName} is not set` });
    }
    const canBeUrl = name !== "url" || URL.canParse(value);
    if (!canBeUrl || !SETTINGS[name].test(value)) {
      throw new ServiceError("not-sent", { detail: `malformed ${shownName}` });
    }
    return value;
  }

  // Arrow functions keep `this`, so you can pass administrate to walk(), and the
  // module can export the functions of a Service.

  /**
   * Send a request and return the response. Throws ServiceError.
   *
   * If no response arrives, or it is a 502, 503 or 504, the request is retried
   * up to four times, unless it creates an account or profile without a key: a
   * repeat would create another one. The options are the body, the key, ifMatch
   * and the parameters. Throws TypeError for an unknown field or parameter, and
   * for an empty parameter, which would count as not sent: without a sessionid,
   * for example, end-session ends the session of the token.
   */
  sendRequest = async (method, path, token, options = {}) => {
    const { body, key, ifMatch, ...query } = options;
    checkNames(body, query);
    const headers = {
      Authorization: `Bearer ${token}`,
      "X-Appid": this.#checkSetting("appid"),
      "X-Request-Id": randomUUID(), // of each try
    };
    if (body) {
      headers["Content-Type"] = "application/json";
    }
    if ("key" in options) {
      headers["Idempotency-Key"] = key;
    }
    if (ifMatch !== undefined && ifMatch !== null) {
      headers["If-Match"] = `"${ifMatch}"`;
    }
    for (const [name, value] of Object.entries(headers)) {
      if (typeof value !== "string" || !HEADER.test(value)) {
        throw new ServiceError("not-sent", { detail: `malformed ${name}` });
      }
    }
    const defaultTimeout = method === "GET" ? "5" : "15";
    const timeout = this.#checkSetting("timeout", defaultTimeout);
    const request = { method, query, headers, body: JSON.stringify(body) };
    const creates = /\/create-(account|profile)$/.test(path);
    const waits = creates && !("key" in options) ? [] : [...WAITS];
    return this.#sendRepeatedly(path, Number(timeout), request, waits);
  };

  /** Send a request until it succeeds or is refused, or the waits are over. */
  async #sendRepeatedly(path, timeout, request, waits) {
    const deadline = performance.now() + 1000 * timeout;
    let failure = null;
    while (true) {
      try {
        return await this.#sendOnce(path, deadline, request);
      } catch (error) {
        const isLost = error.code === "no-answer";
        if (!isLost && ![502, 503, 504].includes(error.status)) {
          throw error;
        }
        if (!failure || !isLost) {
          failure = error; // a response says more than none
        }
        if (waits.length > 0 && /^\d+$/.test(error.retryAfter)) {
          waits[0] = Number(error.retryAfter);
        }
        const wait = waits[0] ?? Infinity;
        if (performance.now() + 1000 * wait >= deadline) {
          throw failure;
        }
      }
      await sleep(1000 * waits.shift());
    }
  }

  async #sendOnce(path, deadline, { query, ...request }) {
    const address = this.#checkSetting("url");
    const parameters = new URLSearchParams(query);
    const url = `${address.replace(/\/+$/, "")}/api/${path}?${parameters}`;
    const requestId = request.headers["X-Request-Id"];
    const timeLeft = Math.ceil(deadline - performance.now());
    const milliseconds = Math.min(1000 * TRY_SECONDS, Math.max(100, timeLeft));
    let response;
    let text;
    try {
      // fetch() closes a connection that was idle for 4 seconds, and tries a
      // host's next address after a fraction of a second.
      response = await fetch(url, {
        ...request,
        cache: "no-store", // because a framework may keep what fetch() returns
        redirect: "manual", // because fetch would turn a POST into a GET
        signal: AbortSignal.timeout(milliseconds),
      });
      text = await response.text();
    } catch (error) {
      if (error.name !== "TypeError" && error.name !== "TimeoutError") {
        throw error; // a framework's control flow, such as that of Next.js
      }
      if (error.cause?.message === "bad port") {
        const [shownName] = this.findSetting("url");
        const detail = `${shownName} has a port that fetch() refuses`;
        throw new ServiceError("not-sent", { detail });
      }
      // The path may be secret.
      const origin = address.split("/").slice(0, 3).join("/");
      const detail = `${origin}, ${describeCause(error)}`;
      throw new ServiceError("no-answer", { requestId, detail });
    }
    const { status, headers } = response;
    let content = {};
    try {
      content = JSON.parse(text);
      if (status === 200 || status === 201) {
        return { status, headers, content };
      }
    } catch {
      // It is not JSON.
    }
    if (content?.object !== "error") {
      content = {};
    }
    const code = content.message ?? "unexpected-answer";
    let ErrorType = ServiceError;
    if (code === "sign-in-required" || code === "administrator-required") {
      const isUser = path.startsWith("user/");
      ErrorType = isUser ? SignedOut : AdministratorTokenError;
    }
    throw new ErrorType(code, {
      status,
      requestId: headers.get("X-Request-Id") ?? requestId,
      reason: content.reason,
      errors: content.errors,
      retryAfter: headers.get("Retry-After") ?? "",
    });
  }

  /** Send a request with the administrator's token. */
  administrate = async (method, path, options) => {
    const token = this.#checkSetting("token");
    return this.sendRequest(method, `administrator/${path}`, token, options);
  };

  /**
   * Yield all accounts, each with its default profile, in the order of their
   * ids.
   *
   * The `externalid` of an account is your id for the user, or null if it has
   * none. With `accountid`, yield only this one; with `after`, those after it.
   */
  accounts = (query) => {
    return walk(this.administrate, "accounts", { limit: 100, ...query });
  };

  /**
   * Yield the profiles of all users, newest first.
   *
   * With `email`, yield those with this address; with `accountid`, those of
   * this account.
   */
  profiles = (query) => {
    return walk(this.administrate, "profiles", { limit: 100, ...query });
  };

  /**
   * Create the account of a user, start a session, and return the User.
   *
   * Calling it again is safe, because the same id always gives the same
   * account. Throws ServiceError("invalid-idempotency-key") if another user's
   * id has the same hash. Then don't call new User(userId), because it would
   * act for that other user.
   */
  signUp = async (userId, duration = DURATION) => {
    this.computeAccountid(userId); // throws TypeError before anything is sent
    await this.administrate("POST", "create-account", { key: userId });
    return this.signIn(userId, duration);
  };

  /**
   * Start a session of a user who has signed up, and return the User.
   *
   * It lasts `duration` seconds, at most a year: use the lifetime of your own
   * session. Throws ServiceError("invalid-accountid") if the account was
   * deleted.
   */
  signIn = async (userId, duration = DURATION) => {
    return this.user(userId, { duration }).signIn();
  };

  /** Return a User of this service, as new User() does for the environment's. */
  user(userId, { token, sessionid, duration } = {}) {
    return new User(userId, token, sessionid, duration, this);
  }

  /** Return the id that the service gives to the account of your user. */
  computeAccountid = (userId) => {
    // HTTP strips whitespace around a header, so "x " and "x" would be one.
    const isKey = typeof userId === "string" && /^[ -~]{1,255}$/.test(userId);
    if (!isKey || userId !== userId.trim()) {
      const rule = "must be 1 to 255 printable ASCII characters, trimmed";
      throw new TypeError(`userId ${rule}: ${inspect(userId)}`);
    }
    const [, appid] = this.findSetting("appid");
    const hash = createHash("sha256").update(`${appid} ${userId}`);
    return "acct_" + hash.digest("hex").slice(0, 16);
  };
}

/** The service that the environment variables name at each request. */
class EnvironmentService extends Service {
  findSetting(name) {
    const variable = `PROFILES_${name.toUpperCase()}`;
    const defaultValue = name === "appid" ? "default" : null;
    return [variable, process.env[variable] || defaultValue];
  }
}

const ENVIRONMENT = new EnvironmentService();

export const {
  sendRequest,
  administrate,
  accounts,
  profiles,
  signUp,
  signIn,
  computeAccountid,
} = ENVIRONMENT;

/** Throw TypeError for an unknown field or parameter, or an empty parameter. */
function checkNames(body, query) {
  for (const name of Object.keys(body ?? {})) {
    const isOwn = OWN_FIELD.test(name) && name.length <= 64;
    if (!BODY_NAMES.includes(name) && !isOwn) {
      throw new TypeError(`unknown field: ${name}`);
    }
  }
  for (const [name, value] of Object.entries(query)) {
    if (!PARAMETERS.includes(name)) {
      throw new TypeError(`unknown parameter: ${name}`);
    }
    if (value === undefined || value === null || value === "") {
      throw new TypeError(`${name} has no value`);
    }
  }
}

/** Return the code of the cause, such as ECONNREFUSED, or its class. */
function describeCause(error) {
  // The error itself says only "fetch failed".
  const { code, name } = error.cause ?? error;
  return typeof code === "string" ? code : name;
}

// The query of a link whose rel is next, quoted or not.
const NEXT_LINK = /\?([^>]*)>[^<]*;\s*rel="?next"?\s*(?=[;,]|$)/;

/**
 * Return the rows of a page of a list, and the query of the next page, or null:
 * readPage(administrate, "accounts", { limit: 20 }). The query of the next page
 * has `after` and all that you send, except `offset`.
 */
export async function readPage(send, path, query) {
  const { headers, content } = await send("GET", path, query);
  const next = NEXT_LINK.exec(headers.get("Link") ?? "");
  const nextQuery = next && Object.fromEntries(new URLSearchParams(next[1]));
  return { rows: content ?? [], nextQuery };
}

/** Yield every row of a list: walk(administrate, "sessions", { limit: 100 }). */
export async function* walk(send, path, query) {
  let page = await readPage(send, path, query);
  yield* page.rows;
  while (page.nextQuery) {
    page = await readPage(send, path, page.nextQuery);
    yield* page.rows;
  }
}

/**
 * Return the values of a profile as fields, of which you can change some:
 * user.saveProfile({ ...toFields(profile), phone: "+44 20 7946 0958" }).
 */
export function toFields(profile) {
  const fields = { ...profile.fields };
  for (const name of FIELDS) {
    const property = name.replace(/-(.)/, (_, letter) => letter.toUpperCase());
    fields[name] = profile[property];
  }
  return fields;
}

/** Return whether a profile has the value that was sent for a field. */
function isStored(name, sent, stored = null) {
  if (name === "dob" && sent && !ISO_DATE.test(sent)) {
    return stored !== null; // the service has rewritten the date
  }
  return sent === undefined || stored === (sent || null);
}

/**
 * Return the profile of a response, in which the fields have been saved.
 *
 * Throws ServiceError("not-stored") if it has other values, because the service
 * ignores fields that aren't in its settings.
 */
function readStored(fields, { status, headers, content: profile }) {
  const stored = toFields(profile);
  const errors = {};
  for (const [name, value] of Object.entries(fields)) {
    if (name !== "default" && !isStored(name, value, stored[name])) {
      errors[name] = "not-stored";
    }
  }
  if (Object.keys(errors).length > 0) {
    throw new ServiceError("not-stored", {
      status,
      requestId: headers.get("X-Request-Id"),
      errors,
      detail: "the service's settings lack these fields, the rest was stored",
      profile,
    });
  }
  return profile;
}

/** Ignore this code, which says that there is nothing left to do. */
async function ignoreCode(code, promise) {
  try {
    await promise;
  } catch (error) {
    if (error.code !== code) {
      throw error;
    }
  }
}

/**
 * A user who has signed up, identified by your id for the user.
 *
 * Give the `token` and the `sessionid` that you have stored. If both are
 * missing, because your own session lost them, calls throw SignedOut. signIn()
 * starts a session of `duration` seconds. `user.accountid` is the id of the
 * account.
 */
export class User {
  #service;

  constructor(
    userId,
    token = "",
    sessionid = "",
    duration = DURATION,
    service = ENVIRONMENT,
  ) {
    this.#service = service;
    this.accountid = service.computeAccountid(userId);
    this.duration = duration;
    if (Boolean(token) !== Boolean(sessionid)) {
      throw new TypeError("the token and its sessionid belong together");
    }
    this.token = token;
    this.sessionid = sessionid;
  }

  /**
   * Start a session, use its token from now on, and return the User. If the
   * account was deleted, this throws ServiceError("invalid-accountid").
   */
  async signIn() {
    const options = {
      accountid: this.accountid,
      body: { duration: this.duration },
    };
    const reply = await this.#service.administrate(
      "POST",
      "create-session",
      options,
    );
    this.token = reply.content.token;
    this.sessionid = reply.content.sessionid;
    return this;
  }

  /** Send a request of the user. Throws SignedOut. */
  // An arrow function keeps `this`, so you can pass user.send to walk().
  send = async (method, path, options) => {
    if (!this.token) {
      const detail = "the User has no token";
      throw new SignedOut("sign-in-required", { detail });
    }
    const pathOfUser = `user/${path}`;
    return this.#service.sendRequest(method, pathOfUser, this.token, options);
  };

  /** Send a request of the user; return the object of the response. */
  async call(method, path, options) {
    const { content } = await this.send(method, path, options);
    return content;
  }

  /** Return the account; its `profile` is the default profile, or null. */
  async account() {
    return this.call("GET", "account", { accountid: this.accountid });
  }

  /** Return a profile of the user. */
  async profile(profileid) {
    return this.call("GET", "profile", { profileid });
  }

  /** Yield the profiles, newest first. */
  profiles(limit = 100) {
    return walk(this.send, "profiles", { accountid: this.accountid, limit });
  }

  /**
   * Save the fields in a profile and return it.
   *
   * Without a profileid, this is the default profile. If there is none, the
   * profile with the key `first` is created, unless it exists, and becomes the
   * default.
   *
   * `ifMatch` is the `updatedAt` of the profile that the user has edited, or ""
   * if your form showed no profile. If the profile has changed since then,
   * nothing is saved, and this throws ServiceError("profile-changed"): show it
   * again.
   *
   * Throws ServiceError("not-stored") if fields that you save or clear aren't
   * in the service's settings. Its `errors` name them. The other fields are
   * stored, and its `profile` is the result.
   */
  async saveProfile(fields, profileid = null, ifMatch = null) {
    if (profileid === null) {
      const { profile } = await this.account();
      if (profile === null) {
        return this.#saveFirstProfile(fields, ifMatch);
      }
      profileid = profile.profileid;
    }
    const options = { profileid, ifMatch, body: fields };
    const reply = await this.send("PATCH", "update-profile", options);
    return readStored(fields, reply);
  }

  /** Save the profile with the key `first`, and make it the default. */
  async #saveFirstProfile(fields, ifMatch) {
    if (ifMatch) {
      // The edited profile was deleted.
      throw new ServiceError("profile-changed", { status: 412 });
    }
    const reply = await this.send("POST", "create-profile", {
      accountid: this.accountid,
      key: "first",
      body: { ...fields, default: "true" },
    });
    if (reply.status === 201) {
      return readStored(fields, reply);
    }
    const { profileid } = reply.content; // of the profile that existed
    await this.setDefaultProfile(profileid);
    return this.saveProfile(fields, profileid, ifMatch);
  }

  /**
   * Create a profile, or return the one that was created with the same key.
   *
   * Use a new UUID as the key of each profile. If it creates the profile, this
   * throws ServiceError("not-stored") for the same reason as saveProfile().
   */
  async createProfile(fields, key) {
    if (key === undefined || key === null) {
      throw new TypeError("key has no value");
    }
    const options = { accountid: this.accountid, key, body: fields };
    const reply = await this.send("POST", "create-profile", options);
    return reply.status === 201 ? readStored(fields, reply) : reply.content;
  }

  /** Make a profile the default; return the account. */
  async setDefaultProfile(profileid) {
    return this.call("PATCH", "set-default-profile", { profileid });
  }

  /** Delete a profile. If it was the default, the user has none afterwards. */
  async deleteProfile(profileid) {
    const deletion = this.send("DELETE", "delete-profile", { profileid });
    await ignoreCode("invalid-profileid", deletion);
  }

  /** Yield the running sessions, newest first: where the user is signed in. */
  sessions(limit = 100) {
    const query = { accountid: this.accountid, active: "true", limit };
    return walk(this.send, "sessions", query);
  }

  /** End one of the user's sessions, to sign the user out on another device. */
  async endSession(sessionid) {
    const end = this.send("PATCH", "end-session", { sessionid });
    await ignoreCode("invalid-sessionid", end);
  }

  /** End this session. Discard the User: another call throws SignedOut. */
  async signOut() {
    await ignoreCode("sign-in-required", this.send("PATCH", "end-session"));
  }

  /** End the user's other running sessions. */
  async signOutElsewhere() {
    const running = [];
    for await (const session of this.sessions()) {
      running.push(session.sessionid);
    }
    for (const sessionid of running) {
      if (sessionid !== this.sessionid) {
        await this.endSession(sessionid);
      }
    }
  }

  /**
   * End all sessions of the user with this id, whose token isn't used. Discard
   * the User: another call throws SignedOut.
   */
  async signOutEverywhere() {
    const { accountid } = this;
    const options = { accountid };
    await this.#service.administrate("PATCH", "end-sessions", options);
  }

  /**
   * Delete the account of the user with this id, whose token isn't used. Its
   * profiles and sessions are deleted, too.
   */
  async delete() {
    const { accountid } = this;
    const deletion = this.#service.administrate("DELETE", "delete-account", {
      accountid,
    });
    await ignoreCode("invalid-accountid", deletion);
  }
}
