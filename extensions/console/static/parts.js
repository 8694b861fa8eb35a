/** What the pages share: live data, addresses, formats, and the pieces that they are made of. */

import { apiPath, can, Lost, queryText, request, session, store } from './api.js';
import { html, useEffect, useErrorBoundary, useRef, useState } from './vendor/htm-preact.js';

export { apiPath, html, useEffect, useErrorBoundary, useRef, useState };

// Live data

/**
 * The value of a store; the component is drawn again when it changes.
 * @template T
 * @param {{ get: () => T, watch: (tell: () => void) => () => void }} store
 * @returns {T}
 */
export function useStore(store) {
  const value = store.get();
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw((n) => n + 1);
    // It may have changed after this was drawn and before it is watched.
    if (store.get() !== value) changed();
    return store.watch(changed);
  }, [store]);
  return value;
}

export const POLL_MS = 2000;
/** After a slow answer a page waits for ten times as long, and at most this long. */
const REST_MS = 10_000;

/**
 * What a path of the API answers, read again every two seconds while the tab is in front, or less
 * often if the answer takes long. A null path reads nothing. The last answer stays when a later one
 * fails.
 * @param {string | null} path
 * @param {{ query?: Record<string, any>, every?: number }} [options]
 * @returns {{ data: any, error: any, refresh: () => void }}
 */
export function usePoll(path, { query, every = POLL_MS } = {}) {
  const [state, setState] = useState(/** @type {{ data: any, error: any }} */ ({ data: undefined, error: null }));
  const refresh = useRef(() => {});
  const asked = JSON.stringify([path, query]);
  useEffect(() => {
    if (!path) return;
    const control = new AbortController();
    let timer = 0;
    let busy = false;
    let etag = '';
    async function read() {
      clearTimeout(timer);
      if (busy || document.hidden) return;
      busy = true;
      const began = performance.now();
      let rest = every;
      try {
        const headers = etag ? { 'if-none-match': etag } : undefined;
        const response = await request('GET', /** @type {string} */ (path), { query, signal: control.signal, headers });
        etag = response.headers.get('etag') ?? '';
        const data = response.status === 304 ? undefined : await response.json();
        setState((last) => ({ data: data ?? last.data, error: null }));
        rest = Math.max(every, Math.min(REST_MS, 10 * (performance.now() - began)));
      } catch (error) {
        if (control.signal.aborted) return;
        setState((last) => ({ data: last.data, error }));
      }
      busy = false;
      if (!control.signal.aborted) timer = setTimeout(read, rest);
    }
    refresh.current = read;
    document.addEventListener('visibilitychange', read);
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', read);
    };
  }, [asked, every]);
  return { ...state, refresh: () => refresh.current() };
}

// Addresses

/**
 * The address of a page, for a link.
 * @param {string} path
 * @param {Record<string, any>} [query]
 */
export const to = (path, query = {}) => `#${path}${queryText(query)}`;

export const jobPath = (/** @type {string} */ id) => to(`/jobs/${encodeURIComponent(id)}`);
export const modelPath = (/** @type {string} */ name) => to(`/models/${encodeURIComponent(name)}`);

/**
 * For filters that the address of a page has: the address with some of them changed, which begins at the first page of a
 * list, and what goes there.
 * @typedef {(change: import('./api.js').Query) => string} Changed
 * @param {string} path
 * @param {Record<string, string>} filters
 * @returns {[Changed, (change: import('./api.js').Query) => void]}
 */
export function changesOf(path, filters) {
  const changed = (/** @type {import('./api.js').Query} */ change) =>
    to(path, { ...filters, cursor: undefined, ...change });
  const go = (/** @type {import('./api.js').Query} */ change) => {
    location.hash = changed(change);
  };
  return [changed, go];
}

// Formats

const NUMBER = new Intl.NumberFormat('en', { maximumFractionDigits: 1, notation: 'compact' });
const WHOLE = new Intl.NumberFormat('en');
export const NONE = '–';

/** @param {number | null | undefined} n */
export const count = (n) =>
  n === null || n === undefined ? NONE : n < 10_000 ? WHOLE.format(Math.round(n * 10) / 10) : NUMBER.format(n);

/** @param {number | null | undefined} n */
export const percent = (n) =>
  n === null || n === undefined ? NONE : `${n > 0 && n < 0.1 ? (n * 100).toFixed(1) : Math.round(n * 100)} %`;

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return NONE;
  const power = n < 1 ? 0 : Math.min(4, Math.floor(Math.log2(n) / 10));
  const value = n / 1024 ** power;
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toFixed(1)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const s = Math.abs(seconds);
  if (s === 0) return '0 s';
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${s < 0.01 ? (s * 1000).toFixed(1) : Math.round(s * 1000)} ms`;
  // Rounded before it is divided: 119.7 s are 2 min, not 1 min 60 s.
  const [whole, minutes] = [Math.round(s), Math.round(s / 60)];
  if (whole < 60) return `${s < 10 ? s.toFixed(1) : whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(s / 86_400)} d`;
}

// Characters that would change the order of what stands beside them, or that nobody sees.
const UNSEEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Text of a client with its invisible characters as codes.
 * @param {unknown} text */
export const visible = (text) =>
  String(text).replace(UNSEEN, (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);

// Pieces

/**
 * Text of a client: escaped, apart from the text around it, and cut where it is long.
 * @param {{ text: unknown, max?: number, block?: boolean }} of
 */
export function Text({ text, max = 200, block = false }) {
  const [whole, setWhole] = useState(false);
  const all = String(text ?? '');
  const shown = visible(whole ? all : all.slice(0, max));
  const more = all.length > max && !whole;
  if (!block)
    return html`<bdi class="user" title=${more ? visible(all.slice(0, 1000)) : null}>${shown}${more && '…'}</bdi>`;
  return html`<pre class="user" dir="auto" tabindex="0">${shown}${more && '…'}</pre>
    ${more && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${count(all.length)} characters</button>`}`;
}

/** A sentence of ours in which `code` stands between backticks. @param {{ text: string }} of */
export const Words = ({ text }) =>
  visible(text)
    .split('`')
    .map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

/** @param {{ value: unknown, max?: number }} of */
export const Json = ({ value, max = 4000 }) =>
  html`<${Text} block text=${JSON.stringify(value, null, 2)} max=${max} />`;

/** How long ago something was, with the exact time on hover.
 * @param {{ at: string | number | null | undefined }} of */
export function Time({ at }) {
  if (at === null || at === undefined) return html`<span class="muted">${NONE}</span>`;
  const when = new Date(at);
  const s = (Date.now() - when.getTime()) / 1000;
  const long = Math.abs(s) < 60 ? `${Math.floor(Math.abs(s))} s` : duration(s);
  const text = Math.abs(s) < 1 ? 'now' : s < 0 ? `in ${long}` : `${long} ago`;
  return html`<time datetime=${when.toISOString()} title=${`${when.toLocaleString()} (${when.toISOString()})`}>${text}</time>`;
}

const TONES = /** @type {Record<string, string>} */ ({
  ready: 'ok',
  succeeded: 'ok',
  delivered: 'ok',
  done: 'ok',
  completed: 'ok',
  running: 'busy',
  loading: 'busy',
  warming: 'busy',
  pending: 'busy',
  in_progress: 'busy',
  requested: 'busy',
  restarting: 'warn',
  draining: 'warn',
  paused: 'warn',
  expired: 'warn',
  warning: 'warn',
  failed: 'bad',
  'no-worker': 'bad',
  stopped: 'bad',
  error: 'bad',
  critical: 'bad',
}); // prettier-ignore

/** A state as a word with a coloured dot.
 * @param {{ of: string, tone?: string }} of */
export const State = ({ of, tone }) =>
  html`<span class="state ${tone ?? TONES[of] ?? ''}">${of.includes(' ') ? of : of.replace(/[-_]/g, ' ')}</span>`;

/** @param {{ title?: any, side?: any, children?: any, class?: string }} of */
export const Panel = ({ title, side, children, class: kind = '' }) => html`
  <section class="panel ${kind}">
    ${(title || side) && html`<header><h2>${title}</h2><div class="side">${side}</div></header>`}
    ${children}
  </section>`;

/** What stands where nothing is: what that means, and what to do next.
 * @param {{ title: string, children?: any }} of */
export const Empty = ({ title, children }) => html`<div class="empty"><p>${title}</p><div>${children}</div></div>`;

/** Why something could not be read. Nothing for a lost API or Redis, which the frame reports.
 * @param {{ error: any }} of */
export function Fault({ error }) {
  if (!error || error instanceof Lost || error.code === 'broker-unavailable') return null;
  return html`<p class="fault" role="alert"><b>${visible(error.message)}</b> ${visible(error.remedy ?? '')}</p>`;
}

/** The children, when the data of a poll are there; before that, that they load.
 * @param {{ of: { data: any, error: any }, children: any }} of */
export const Loaded = ({ of, children }) => html`
  <${Fault} error=${of.error} />
  ${of.data === undefined ? !of.error && html`<p class="loading" role="status">Loading…</p>` : children()}`;

/**
 * @typedef {{ name: any, cell: (row: any) => any, num?: boolean, wide?: boolean, by?: (row: any) => any }} Column
 * A column. `num` aligns to the right; `wide` is left out on narrow screens; `by` makes it sortable.
 */

/**
 * A table in a frame that scrolls on its own.
 * @param {{ label: string, columns: Column[], rows: any[], id: (row: any) => string, empty?: any }} of
 */
export function Table({ label, columns, rows, id, empty }) {
  const [order, setOrder] = useState({ column: -1, down: true });
  if (!rows.length) return empty ?? null;
  const by = columns[order.column]?.by;
  const sign = order.down ? -1 : 1;
  const sorted = by
    ? [...rows].sort((a, b) => sign * ((by(a) ?? -1) < (by(b) ?? -1) ? -1 : (by(a) ?? -1) > (by(b) ?? -1) ? 1 : 0))
    : rows;
  const kind = (/** @type {Column} */ column) => `${column.num ? 'num' : ''} ${column.wide ? 'wide' : ''}`;
  const heads = columns.map((column, i) => {
    const here = order.column === i;
    const sort = () => setOrder({ column: i, down: here ? !order.down : true });
    return html`<th scope="col" class=${kind(column)} aria-sort=${here ? (order.down ? 'descending' : 'ascending') : null}>
      ${column.by ? html`<button onClick=${sort}>${column.name}${here && (order.down ? ' ↓' : ' ↑')}</button>` : column.name}</th>`;
  });
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table><thead><tr>${heads}</tr></thead>
    <tbody>${sorted.map((row) => html`<tr key=${id(row)}>${columns.map((column) => html`<td class=${kind(column)}>${column.cell(row)}</td>`)}</tr>`)}</tbody>
    </table></div>`;
}

/** Names and values.
 * @param {{ of: [string, any][] }} of */
export const Facts = ({ of }) =>
  html`<dl class="facts">${of.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value ?? NONE}</dd></div>`)}</dl>`;

/** A line of the last values without axes; null is a gap.
 * @param {{ values: (number | null)[], label: string, tone?: string }} of */
export function Spark({ values, label, tone = '' }) {
  const top = Math.max(...values.map((v) => v ?? 0));
  if (!(top > 0)) return html`<svg class="spark" aria-hidden="true"></svg>`;
  let pen = 'M';
  const path = values.map((v, i) => {
    if (v === null || v === undefined) {
      pen = 'M';
      return '';
    }
    const step = `${pen}${((i * 100) / Math.max(values.length - 1, 1)).toFixed(1)} ${(22 - (v / top) * 20).toFixed(1)}`;
    pen = 'L';
    return step;
  });
  return html`<svg class="spark ${tone}" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label=${label}><path d=${path.join('')} /></svg>`;
}

/** A share as a bar.
 * @param {{ share: number, label: string, tone?: string }} of */
export const Bar = ({ share, label, tone = '' }) => html`
  <span class="bar ${tone}" role="img" aria-label=${label} title=${label}><i style=${{ width: `${Math.min(100, Math.max(0, share * 100))}%` }}></i></span>`;

const SHADES = ['--accent', '--second', '--bad', '--warn'];

/** A time of an axis: the hour, and at midnight the day. @param {number} s */
const clock = (s) => {
  const at = new Date(s * 1000);
  const day = at.getHours() === 0 && at.getMinutes() === 0;
  return at.toLocaleString('en-GB', day ? { day: 'numeric', month: 'short' } : { hour: '2-digit', minute: '2-digit' });
};

/**
 * Lines over time with axes. uPlot is loaded with the first chart.
 * @param {{ times: number[], lines: { label: string, values: (number | null)[], bars?: boolean, tone?: string }[], format?: (n: number) => string, label: string }} of
 */
export function Chart({ times, lines, format = count, label }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const data = [times, ...lines.map((line) => line.values)];
  useEffect(() => {
    let over = false;
    const box = /** @type {HTMLElement} */ (place.current);
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: 150 }));
    const css = (/** @type {string} */ name) => {
      box.style.setProperty('outline-color', `var(${name})`);
      return getComputedStyle(box).outlineColor;
    };
    import('./vendor/uplot.js').then(({ default: UPlot }) => {
      if (over) return;
      const axis = {
        stroke: () => css('--muted'),
        grid: { stroke: () => css('--line'), width: 1 },
        ticks: { show: false },
        font: '11px system-ui',
      };
      const series = lines.map((line, i) => ({
        label: line.label,
        width: 1.5,
        points: { show: false },
        value: (/** @type {any} */ _, /** @type {number | null} */ v) => (v === null ? NONE : format(v)),
        stroke: () => css(line.tone ? `--${line.tone}` : SHADES[i]),
        ...(line.bars && {
          paths: UPlot.paths.bars?.({ size: [0.8] }),
          fill: () => css(line.tone ? `--${line.tone}` : SHADES[i]),
        }),
      })); // prettier-ignore
      plot.current = new UPlot(
        {
          width: box.clientWidth,
          height: 150,
          cursor: { drag: { x: false, y: false } },
          legend: { live: true },
          axes: [
            { ...axis, space: 70, size: 30, values: (_, splits) => splits.map(clock) },
            {
              ...axis,
              size: (_, values) => Math.max(52, ...(values ?? []).map((text) => 14 + 6.5 * text.length)),
              space: 30,
              values: (_, splits) => splits.map((v) => format(v)),
            },
          ],
          scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
          series: [{ label: 'Time', value: (_, v) => (v === null ? NONE : clock(v)) }, ...series],
        },
        /** @type {any} */ (data),
        box,
      ); // prettier-ignore
      fit.observe(box);
    });
    return () => {
      over = true;
      fit.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [lines.length]);
  useEffect(() => plot.current?.setData(data), [JSON.stringify(data)]);
  return html`<div class="chart" ref=${place} role="img" aria-label=${label}></div>`;
}

// Actions

const toast = store(/** @type {{ text: string, bad: boolean } | null} */ (null));

/** Tell what an action has done, for a few seconds.
 * @param {string} text */
export function tell(text, bad = false) {
  const now = { text, bad };
  toast.set(now);
  setTimeout(() => toast.get() === now && toast.set(null), bad ? 12_000 : 5000);
}

export function Toasts() {
  const shown = useStore(toast);
  return html`<div class="toasts" role="status" aria-live="polite">${shown && html`<p class=${shown.bad ? 'bad' : ''}>${visible(shown.text)}</p>`}</div>`;
}

/**
 * A button that does something, absent where the key lacks the scope. With `confirm` it asks first:
 * that text says what will happen. `run` returns what to tell when it is done.
 * @param {{ label: string, run: () => Promise<string | void>, scope?: string, confirm?: any, keep?: string, kind?: string, title?: string }} of
 */
export function Action({
  label,
  run,
  scope = 'manage',
  confirm,
  kind = '',
  keep = kind === 'danger' ? 'Keep it' : 'Not now',
  title,
}) {
  const [busy, setBusy] = useState(false);
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useStore(session);
  if (!can(scope)) return null;
  async function act() {
    dialog.current?.close();
    setBusy(true);
    try {
      const text = await run();
      if (text) tell(text);
    } catch (/** @type {any} */ error) {
      tell(`${error.message}${error.remedy ? ` ${error.remedy}` : ''}`, true);
    }
    setBusy(false);
  }
  return html`<button class=${kind} title=${title} disabled=${busy} onClick=${() => (confirm ? dialog.current?.showModal() : act())}>${label}</button>
    ${
      confirm &&
      html`<dialog ref=${dialog} aria-label=${label}><div>${confirm}</div>
      <footer><button onClick=${() => dialog.current?.close()}>${keep}</button><button class=${kind || 'primary'} onClick=${act}>${label}</button></footer></dialog>`
    }`;
}

/** Copies text. @param {{ text: string, label?: string }} of */
export const Copy = ({ text, label = 'Copy' }) => html`
  <button class="quiet" onClick=${() =>
    navigator.clipboard.writeText(text).then(
      () => tell('Copied.'),
      () => tell('The browser does not let this page copy.', true),
    )}>${label}</button>`;

/** @param {{ label: string, value?: string, options: string[][], onChange: (value: string) => void }} of */
export const Select = ({ label, value = '', options, onChange }) => html`
  <select key=${options.length} aria-label=${label} value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
    ${options.map(([name, text]) => html`<option value=${name} selected=${name === value}>${text}</option>`)}
  </select>`;

/** Chooses a model as a filter. @param {{ value?: string, go: (change: import('./api.js').Query) => void }} of */
export function ModelSelect({ value, go }) {
  const models = usePoll('/api/v1/models', { every: 30_000 });
  const names = (models.data?.models ?? []).map((/** @type {any} */ m) => [m.name, m.name]);
  return html`<${Select} label="Model" value=${value} onChange=${(/** @type {string} */ model) => go({ model })} options=${[['', 'all models'], ...names]} />`;
}

/** The ways to the newest page of a list and to the next one.
 * @param {{ filters: Record<string, string>, next: string | null, changed: Changed }} of */
export const Pages = ({ filters, next, changed }) =>
  (filters.cursor || next) &&
  html`<p class="pages">${filters.cursor && html`<a class="button" href=${changed({})}>Newest</a>`}
    ${next && html`<a class="button" href=${changed({ cursor: next })}>Older</a>`}</p>`;

/** One of a few choices.
 * @param {{ label: string, options: [string, string][], value: string, onChange: (value: string) => void }} of */
export const Choice = ({ label, options, value, onChange }) => html`
  <div class="choice" role="group" aria-label=${label}>
    ${options.map(([name, text]) => html`<button aria-pressed=${name === value ? 'true' : 'false'} onClick=${() => onChange(name)}>${text}</button>`)}
  </div>`;
