/* The types of client.mjs. */

export interface Profile {
  profileid: string;
  object: "profile";
  appid: string;
  accountid: string;
  fullName: string | null;
  contactEmail: string | null;
  displayEmail: string | null;
  displayName: string | null;
  companyName: string | null;
  dob: string | null;
  phone: string | null;
  occupation: string | null;
  location: string | null;
  website: string | null;
  fields: Record<string, string> | null;
  createdAt: string;
  updatedAt: string;
}

export interface Account {
  accountid: string;
  object: "account";
  appid: string;
  externalid: string | null;
  administrator: boolean;
  profileid: string | null;
  createdAt: string;
  updatedAt: string;
  profile: Profile | null;
}

export interface Session {
  sessionid: string;
  object: "session";
  appid: string;
  accountid: string;
  duration: number;
  csrfToken: string;
  expiresAt: string;
  lastVerifiedAt: string;
  ended: boolean;
  createdAt: string;
  updatedAt: string;
}

/** The rows of each list. */
export interface Lists {
  accounts: Account;
  profiles: Profile;
  sessions: Session;
}

/** What each path of a user returns. */
export interface UserPaths {
  account: Account;
  profile: Profile;
  profiles: Profile[] | null;
  sessions: Session[] | null;
  "create-profile": Profile;
  "update-profile": Profile;
  "set-default-profile": Account;
  "delete-profile": Profile;
  "end-session": Session;
}

/** What each path of an administrator returns. */
export interface AdministratorPaths {
  accounts: Account[] | null;
  profiles: Profile[] | null;
  sessions: Session[] | null;
  "create-account": Account;
  "create-session": Session & { token: string };
  "end-sessions": { object: "end"; count: number };
  "delete-account": {
    object: "deletion";
    accountid: string;
    profiles: number;
    sessions: number;
  };
}

/** What each path of sendRequest() returns. */
export type Paths = {
  [path in keyof UserPaths as `user/${path}`]: UserPaths[path];
} & {
  [
    path in keyof AdministratorPaths as `administrator/${path}`
  ]: AdministratorPaths[path];
};

export type FieldName =
  | "full-name"
  | "contact-email"
  | "display-email"
  | "display-name"
  | "company-name"
  | "dob"
  | "phone"
  | "occupation"
  | "location"
  | "website";

/** Such as { "full-name": "Ada King" }. */
export type Fields = {
  [name in FieldName | `x-${string}`]?: string | null;
};

export type NewFields = Fields & { default?: string | boolean | null };

export type Method = "GET" | "POST" | "PATCH" | "DELETE";

/** The parameters of a list. */
export type Query = {
  accountid?: string;
  email?: string;
  active?: string | boolean;
  limit?: number | string;
  offset?: number | string;
  after?: string;
  all?: string | boolean;
};

/** The parameters of a request, and its body, key and ifMatch. */
export type Options = Query & {
  profileid?: string;
  sessionid?: string;
  body?: NewFields & { duration?: number | string };
  key?: string;
  ifMatch?: string | null;
};

export interface Reply<Content = unknown> {
  status: number;
  headers: { get(name: string): string | null };
  content: Content;
}

type SharedPaths = Pick<UserPaths, keyof UserPaths & keyof AdministratorPaths>;

export type Send<Contents = SharedPaths> = <Path extends keyof Contents>(
  method: Method,
  path: Path,
  options?: Options,
) => Promise<Reply<Contents[Path]>>;

type SendList<Path> = (
  method: "GET",
  path: Path,
  query?: Query,
) => Promise<Reply>;

/** The path of the list that has such rows. */
type PathOf<Row> = {
  [Path in keyof Lists]: Lists[Path] extends Row ? Path : never;
}[keyof Lists];

export interface Page<Row> {
  rows: Row[];
  nextQuery: (Query & Record<string, string>) | null;
}

/** The codes of API.md, and those that ServiceError adds. */
export type Code =
  | "unexpected-answer"
  | "no-answer"
  | "not-sent"
  | "not-stored"
  | "not-found"
  | "method-not-allowed"
  | "invalid-appid"
  | "sign-in-required"
  | "read-only-token"
  | "body-too-large"
  | "unsupported-media-type"
  | "invalid-body"
  | "bad-request"
  | "database-unavailable"
  | "internal-error"
  | "invalid-parameter"
  | "administrator-required"
  | "invalid-accountid"
  | "invalid-profileid"
  | "invalid-sessionid"
  | "invalid-account"
  | "profile-changed"
  | "invalid-idempotency-key"
  | "invalid-duration"
  | "invalid-limit"
  | "invalid-offset"
  | "invalid-after"
  | `invalid-${FieldName}`
  | `invalid-${"full-name" | "display-name" | "company-name"}-length`;

/** The code of each wrong field, such as { dob: "invalid-dob" }. */
export type Errors = { [name in FieldName]?: Code } & Record<string, string>;

export interface ErrorDetails {
  status?: number | null;
  requestId?: string | null;
  reason?: string | null;
  errors?: Errors;
  retryAfter?: string;
  detail?: string;
  profile?: Profile | null;
}

/**
 * A request failed. The code is one of API.md's, or one of these:
 *
 * - unexpected-answer: the response is a proxy's page, say, not the service's.
 * - no-answer: there was no response, so there is no status either.
 * - not-sent: a setting is missing, or a setting, token or key is malformed.
 * - not-stored: the service's settings lack the fields that are named in
 *   errors. All other fields were stored.
 */
export class ServiceError extends Error {
  constructor(code: Code | (string & {}), details?: ErrorDetails);
  code: Code | (string & {});
  status: number | null;
  /** It finds each try in the service's log. */
  requestId: string | null;
  /** Of a 401: ended, expired, or null if the token is unknown. */
  reason: string | null;
  /** Each wrong field's code. */
  errors: Errors;
  retryAfter: string;
  /** Of no-answer, not-sent and not-stored: what went wrong. */
  detail: string;
  /** Of not-stored: the profile as it is now. */
  readonly profile: Profile | null;
}

/** The service's token or appid is wrong. Tell the operator, not the user. */
export class AdministratorTokenError extends ServiceError {}

/** The user must sign in again: the session ended, expired or was deleted. */
export class SignedOut extends ServiceError {}

/** A service whose settings are arguments, not environment variables. */
export class Service {
  constructor(settings: {
    url: string;
    token: string;
    appid?: string;
    timeout?: number | null;
  });
  /** Send a request and return the response. Throws ServiceError. */
  sendRequest: <Path extends keyof Paths>(
    method: Method,
    path: Path,
    token: string,
    options?: Options,
  ) => Promise<Reply<Paths[Path]>>;
  /** Send a request with the administrator's token. */
  administrate: Send<AdministratorPaths>;
  /**
   * Yield all accounts, each with its default profile, in the order of their
   * ids. With `accountid`, yield only this one; with `after`, those after it.
   */
  accounts: (query?: {
    accountid?: string;
    after?: string;
    limit?: number;
  }) => AsyncGenerator<Account, void>;
  /**
   * Yield the profiles of all users, newest first. With `email`, yield those
   * with this address; with `accountid`, those of this account.
   */
  profiles: (query?: {
    email?: string;
    accountid?: string;
    after?: string;
    limit?: number;
  }) => AsyncGenerator<Profile, void>;
  /**
   * Create the account of a user, start a session, and return the User. Calling
   * it again is safe, because the same id always gives the same account.
   */
  signUp: (userId: string, duration?: number) => Promise<User>;
  /**
   * Start a session of a user who has signed up, and return the User. It lasts
   * `duration` seconds, by default 30 days.
   */
  signIn: (userId: string, duration?: number) => Promise<User>;
  /** Return a User of this service. */
  user(
    userId: string,
    session?: {
      token?: string | null | undefined;
      sessionid?: string | null | undefined;
      duration?: number;
    },
  ): User;
  /** Return the id that the service gives to the account of your user. */
  computeAccountid: (userId: string) => string;
}

/** Send a request and return the response. Throws ServiceError. */
export const sendRequest: Service["sendRequest"];
/** Send a request with the administrator's token. */
export const administrate: Service["administrate"];
/**
 * Yield all accounts, each with its default profile, in the order of their ids.
 * With `accountid`, yield only this one; with `after`, those after it.
 */
export const accounts: Service["accounts"];
/**
 * Yield the profiles of all users, newest first. With `email`, yield those with
 * this address; with `accountid`, those of this account.
 */
export const profiles: Service["profiles"];
/**
 * Create the account of a user, start a session, and return the User. Calling
 * it again is safe, because the same id always gives the same account.
 */
export const signUp: Service["signUp"];
/**
 * Start a session of a user who has signed up, and return the User. It lasts
 * `duration` seconds, by default 30 days.
 */
export const signIn: Service["signIn"];
/** Return the id that the service gives to the account of your user. */
export const computeAccountid: Service["computeAccountid"];

/**
 * Return the rows of a page of a list, and the query of the next page, or null:
 * readPage(administrate, "accounts", { limit: 20 }).
 */
export function readPage<Path extends keyof Lists>(
  send: SendList<Path>,
  path: Path,
  query?: Query,
): Promise<Page<Lists[Path]>>;
export function readPage<Row>(
  send: SendList<PathOf<Row>>,
  path: PathOf<Row>,
  query?: Query,
): Promise<Page<Row>>;

/** Yield every row of a list: walk(administrate, "sessions", { limit: 100 }). */
export function walk<Path extends keyof Lists>(
  send: SendList<Path>,
  path: Path,
  query?: Query,
): AsyncGenerator<Lists[Path], void>;
export function walk<Row>(
  send: SendList<PathOf<Row>>,
  path: PathOf<Row>,
  query?: Query,
): AsyncGenerator<Row, void>;

/**
 * Return the values of a profile as fields, of which you can change some:
 * user.saveProfile({ ...toFields(profile), phone: "+44 20 7946 0958" }).
 */
export function toFields(profile: Profile): Fields;

/** A user who has signed up, identified by your id for the user. */
export class User {
  /** Give the `token` and the `sessionid` that you have stored. */
  constructor(
    userId: string,
    token?: string | null,
    sessionid?: string | null,
    duration?: number,
    service?: Service,
  );
  /** The id of the account. */
  accountid: string;
  /** How many seconds the session lasts that signIn() starts. */
  duration: number;
  /** Store it in your own session. */
  token: string;
  /** Store it in your own session. */
  sessionid: string;
  /** Start a session, use its token from now on, and return the User. */
  signIn(): Promise<this>;
  /** Send a request of the user. Throws SignedOut. */
  send: Send<UserPaths>;
  /** Send a request of the user; return the object of the response. */
  call<Path extends keyof UserPaths>(
    method: Method,
    path: Path,
    options?: Options,
  ): Promise<UserPaths[Path]>;
  /** Return the account; its `profile` is the default profile, or null. */
  account(): Promise<Account>;
  /** Return a profile of the user. */
  profile(profileid: string): Promise<Profile>;
  /** Yield the profiles, newest first. */
  profiles(limit?: number): AsyncGenerator<Profile, void>;
  /**
   * Save the fields in a profile and return it. Without a profileid, this is
   * the default profile, which is created if there is none.
   *
   * `ifMatch` is the `updatedAt` of the profile that the user has edited, or ""
   * if your form showed no profile. If the profile has changed since then,
   * nothing is saved, and this throws ServiceError("profile-changed").
   *
   * Throws ServiceError("not-stored") if fields that you save or clear aren't
   * in the service's settings.
   */
  saveProfile(
    fields: Fields,
    profileid?: string | null,
    ifMatch?: string | null,
  ): Promise<Profile>;
  /**
   * Create a profile, or return the one that was created with the same key. Use
   * a new UUID as the key of each profile.
   */
  createProfile(fields: NewFields, key: string): Promise<Profile>;
  /** Make a profile the default; return the account. */
  setDefaultProfile(profileid: string): Promise<Account>;
  /** Delete a profile. If it was the default, the user has none afterwards. */
  deleteProfile(profileid: string): Promise<void>;
  /** Yield the running sessions, newest first: where the user is signed in. */
  sessions(limit?: number): AsyncGenerator<Session, void>;
  /** End one of the user's sessions, to sign the user out on another device. */
  endSession(sessionid: string): Promise<void>;
  /** End this session. Discard the User: another call throws SignedOut. */
  signOut(): Promise<void>;
  /** End the user's other running sessions. */
  signOutElsewhere(): Promise<void>;
  /**
   * End all sessions of the user with this id, whose token isn't used. Discard
   * the User: another call throws SignedOut.
   */
  signOutEverywhere(): Promise<void>;
  /**
   * Delete the account of the user with this id, whose token isn't used. Its
   * profiles and sessions are deleted, too.
   */
  delete(): Promise<void>;
}
