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

/** Such as { "full-name": "Ada King" }. */
export type Fields = {
  [name in FieldName | `x-${string}`]?: string | null;
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
  | "website"
  | "default";

/** The parameters of a request, and its body, key and ifMatch. */
export type Options = Record<string, unknown>;

export interface Reply {
  status: number;
  headers: { get(name: string): string | null };
  content: any;
}

export type Send = (
  method: string,
  path: string,
  options?: Options,
) => Promise<Reply>;

export interface ErrorDetails {
  status?: number | null;
  requestId?: string | null;
  reason?: string | null;
  errors?: Record<string, string>;
  retryAfter?: string;
  detail?: string;
}

export class ServiceError extends Error {
  constructor(code: string, details?: ErrorDetails);
  code: string;
  status: number | null;
  requestId: string | null;
  reason: string | null;
  errors: Record<string, string>;
  retryAfter: string;
  detail: string;
}

export class AdministratorTokenError extends ServiceError {}

export class SignedOut extends ServiceError {}

export function sendRequest(
  method: string,
  path: string,
  token: string,
  options?: Options,
): Promise<Reply>;

export const administrate: Send;

export function readPage<Row = any>(
  send: Send,
  path: string,
  query?: Options,
): Promise<{ rows: Row[]; nextQuery: Record<string, string> | null }>;

export function walk<Row = any>(
  send: Send,
  path: string,
  query?: Options,
): AsyncGenerator<Row, void>;

export function accounts(query?: {
  accountid?: string;
  after?: string;
  limit?: number;
}): AsyncGenerator<Account, void>;

export function profiles(query?: {
  email?: string;
  accountid?: string;
  after?: string;
  limit?: number;
}): AsyncGenerator<Profile, void>;

export function signUp(userId: string, duration?: number): Promise<User>;

export function computeAccountid(userId: string): string;

export function toFields(profile: Profile): Fields;

export class User {
  constructor(
    userId: string,
    token?: string,
    sessionid?: string,
    duration?: number,
  );
  accountid: string;
  duration: number;
  token: string;
  sessionid: string;
  signIn(): Promise<this>;
  send: Send;
  call(method: string, path: string, options?: Options): Promise<any>;
  account(): Promise<Account>;
  profile(profileid: string): Promise<Profile>;
  profiles(limit?: number): AsyncGenerator<Profile, void>;
  saveProfile(
    fields: Fields,
    profileid?: string | null,
    ifMatch?: string | null,
  ): Promise<Profile>;
  createProfile(fields: Fields, key: string): Promise<Profile>;
  setDefaultProfile(profileid: string): Promise<Account>;
  deleteProfile(profileid: string): Promise<void>;
  sessions(limit?: number): AsyncGenerator<Session, void>;
  endSession(sessionid: string): Promise<void>;
  signOut(): Promise<void>;
  signOutEverywhere(): Promise<void>;
  delete(): Promise<void>;
}
