/* The types of client.mjs, which says what each does. */

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

export interface ErrorDetails {
  status?: number | null;
  requestId?: string | null;
  reason?: string | null;
  errors?: Record<string, string>;
  retryAfter?: string;
  detail?: string;
}

export class ServiceError extends Error {
  constructor(code: Code | (string & {}), details?: ErrorDetails);
  code: Code | (string & {});
  status: number | null;
  requestId: string | null;
  reason: string | null;
  errors: Record<string, string>;
  retryAfter: string;
  detail: string;
}

export class AdministratorTokenError extends ServiceError {}

export class SignedOut extends ServiceError {}

export class Service {
  constructor(settings: {
    url: string;
    token: string;
    appid?: string;
    timeout?: number | null;
  });
  sendRequest: <Path extends keyof Paths>(
    method: Method,
    path: Path,
    token: string,
    options?: Options,
  ) => Promise<Reply<Paths[Path]>>;
  administrate: Send<AdministratorPaths>;
  accounts: (query?: {
    accountid?: string;
    after?: string;
    limit?: number;
  }) => AsyncGenerator<Account, void>;
  profiles: (query?: {
    email?: string;
    accountid?: string;
    after?: string;
    limit?: number;
  }) => AsyncGenerator<Profile, void>;
  signUp: (userId: string, duration?: number) => Promise<User>;
  user(
    userId: string,
    session?: { token?: string; sessionid?: string; duration?: number },
  ): User;
  computeAccountid: (userId: string) => string;
}

export const sendRequest: Service["sendRequest"];
export const administrate: Service["administrate"];
export const accounts: Service["accounts"];
export const profiles: Service["profiles"];
export const signUp: Service["signUp"];
export const computeAccountid: Service["computeAccountid"];

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

export function toFields(profile: Profile): Fields;

export class User {
  constructor(
    userId: string,
    token?: string,
    sessionid?: string,
    duration?: number,
    service?: Service,
  );
  accountid: string;
  duration: number;
  token: string;
  sessionid: string;
  signIn(): Promise<this>;
  send: Send<UserPaths>;
  call<Path extends keyof UserPaths>(
    method: Method,
    path: Path,
    options?: Options,
  ): Promise<UserPaths[Path]>;
  account(): Promise<Account>;
  profile(profileid: string): Promise<Profile>;
  profiles(limit?: number): AsyncGenerator<Profile, void>;
  saveProfile(
    fields: Fields,
    profileid?: string | null,
    ifMatch?: string | null,
  ): Promise<Profile>;
  createProfile(fields: NewFields, key: string): Promise<Profile>;
  setDefaultProfile(profileid: string): Promise<Account>;
  deleteProfile(profileid: string): Promise<void>;
  sessions(limit?: number): AsyncGenerator<Session, void>;
  endSession(sessionid: string): Promise<void>;
  signOut(): Promise<void>;
  signOutElsewhere(): Promise<void>;
  signOutEverywhere(): Promise<void>;
  delete(): Promise<void>;
}
