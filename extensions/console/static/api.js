/**
 * The client of the API: requests with the key of this tab, problems as errors, pieces of a stream
 * as they come. It also knows whether the connection is lost, and what the key may do.
 */

/** The root of the API; the console may be behind a proxy that adds a prefix. */
const ROOT = new URL('.', location.href);
const KEY = 'headrace.key';
/** An answer that takes longer counts as a lost connection. The API itself waits 10 s for Redis.
 * A change of many jobs takes a while. */
const READ_PATIENCE_MS = 12_000;
const CHANGE_PATIENCE_MS = 120_000;
const AGAIN_MS = 2000;

/**
 * A value that pages can watch.
 * @template T
 * @param {T} first
 */
export function store(first) {
  let value = first;
  /** @type {Set<() => void>} */
  const watchers = new Set();
  return {
    get: () => value,
    /** @param {T} next */
    set(next) {
      value = next;
      for (const tell of watchers) tell();
    },
    /** @param {() => void} tell */
    watch(tell) {
      watchers.add(tell);
      return () => void watchers.delete(tell);
    },
  };
}

/** When the last answer came before the API, or its Redis, was lost, and what does not answer; null while both are there. */
export const lost = store(/** @type {{ since: number, why: string } | null} */ (null));
let answeredAt = Date.now();

/** @param {string} why */
function lose(why) {
  if (lost.get()?.why !== why) lost.set({ since: answeredAt, why });
}

/**
 * Who uses this tab. Without `scopes` the key is not known yet; `needed` asks for one, and says why;
 * `trouble` is why the API cannot tell at the moment.
 * @typedef {{ scopes?: string[], name?: string, id?: string, needed?: string, trouble?: any }} Session
 */
export const session = store(/** @type {Session} */ ({}));

/** What the API refuses, as it explains it (RFC 9457). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{ type?: string, title?: string, detail?: string, remedy?: string }} body
   */
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the API answered ${status}`);
    this.status = status;
    this.code = (body.type ?? '').split('/').pop() ?? '';
    this.remedy = body.remedy ?? '';
  }
}

/** No answer came. */
export class Lost extends Error {}

/** @param {string} scope */
export const can = (scope) => session.get().scopes?.includes(scope) ?? false;
export const key = () => sessionStorage.getItem(KEY) ?? '';

/** @typedef {Record<string, string | number | undefined | null>} Query */

/**
 * The text of a query, such as `?limit=5`, without its empty members; "" if none is left.
 * @param {Query} query
 */
export function queryText(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, `${value}`]))}` : '';
}

/** The path of the API with these parts. */
export const apiPath = (/** @type {string[]} */ ...parts) => `/api/v1/${parts.map(encodeURIComponent).join('/')}`;

/**
 * The absolute address of a path of the API.
 * @param {string} path
 * @param {Query} [query]
 */
export const address = (path, query = {}) => new URL(path.replace(/^\//, '') + queryText(query), ROOT);

/** @typedef {{ query?: Record<string, any>, json?: unknown, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal, patient?: boolean }} Options */

/**
 * Send a request; throw a Problem for a refusal, and Lost without an answer.
 * @param {string} method
 * @param {string} path
 * @param {Options} [options]
 */
export async function request(method, path, options = {}) {
  const headers = { ...options.headers };
  // The audit log has what the console changes, also where no keys are required.
  if (method !== 'GET') headers['headrace-client'] = 'console';
  if (key()) headers.authorization = `Bearer ${key()}`;
  let body = options.body;
  if (options.json !== undefined) {
    body = JSON.stringify(options.json);
    headers['content-type'] = 'application/json';
  }
  const patience = method === 'GET' ? READ_PATIENCE_MS : CHANGE_PATIENCE_MS;
  const limits = options.patient ? [] : [AbortSignal.timeout(patience)];
  const signal = AbortSignal.any([...limits, ...(options.signal ? [options.signal] : [])]);
  let response;
  try {
    response = await fetch(address(path, options.query), { method, headers, body, signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    lose('The connection to the API is lost.');
    throw new Lost('the API does not answer');
  }
  const problem =
    response.ok || response.status === 304 ? null : new Problem(response.status, await explained(response));
  if (problem?.code === 'broker-unavailable') {
    lose('The API cannot reach its Redis.');
    throw problem;
  }
  answeredAt = Date.now();
  if (lost.get()) lost.set(null);
  if (!problem) return response;
  if (response.status === 401) session.set({ needed: key() ? problem.message : '' });
  throw problem;
}

/** @param {Response} response */
async function explained(response) {
  try {
    const body = await response.json();
    return typeof body.error === 'object' ? { detail: body.error.message } : body;
  } catch {
    return {};
  }
}

/**
 * @param {string} path
 * @param {Options} [options]
 */
export const get = async (path, options) => (await request('GET', path, options)).json();

/**
 * Send JSON, and return the JSON of the answer, or null if it has none.
 * @param {string} method
 * @param {string} path
 * @param {unknown} [json]
 * @param {Options} [options]
 */
export async function send(method, path, json, options) {
  const text = await (await request(method, path, { ...options, json })).text();
  return text ? JSON.parse(text) : null;
}

/**
 * Yield the lines of an answer as they come.
 * @param {Response} response
 */
export async function* lines(response) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    const parts = (rest + (value ?? '')).split('\n');
    rest = done ? '' : (parts.pop() ?? '');
    yield* parts.filter(Boolean);
    if (done) return;
  }
}

/**
 * Begin with a key; "" forgets it. The session tells whether it is good.
 * @param {string} [text]
 */
export async function enter(text) {
  if (text !== undefined) sessionStorage.setItem(KEY, text.trim());
  if (text === '') sessionStorage.removeItem(KEY);
  try {
    session.set(await get('/api/v1/keys/self'));
  } catch (error) {
    const status = error instanceof Problem ? error.status : 0;
    // An API of an earlier version, while it is replaced, cannot tell.
    if (status === 404) session.set({ scopes: ['submit', 'read', 'manage'] });
    else if (status !== 401) {
      session.set({ trouble: error });
      setTimeout(enter, AGAIN_MS);
    }
  }
}

/**
 * Follow the pieces of a job from its first one to its end, over lost connections.
 * @param {string} id
 * @param {(state: { pieces: any[], missing: boolean, job?: any }) => void} tell called with all that is known
 * @param {AbortSignal} signal
 */
export async function follow(id, tell, signal) {
  let place = '';
  let state = { pieces: /** @type {any[]} */ ([]), missing: false, job: undefined };
  while (!signal.aborted && !state.job) {
    try {
      const query = { format: 'ndjson', starting_after: place };
      const response = await request('GET', apiPath('jobs', id, 'stream'), { query, signal, patient: true });
      for await (const line of lines(response)) {
        const event = JSON.parse(line);
        place = event.id ?? place;
        const pieces = event.restarted ? [] : [...state.pieces, ...(event.pieces ?? [])];
        state = { pieces, missing: state.missing || 'missing' in event, job: event.job };
        tell(state);
      }
    } catch (error) {
      // Too many streams, or no Redis, may pass; a job that is gone does not come back.
      if (signal.aborted || (error instanceof Problem && error.status < 429)) return;
    }
    if (!state.job) await new Promise((after) => setTimeout(after, 1000));
  }
}
