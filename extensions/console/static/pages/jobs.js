/** Jobs: a list that the address describes, newest first, a page at a time. */

import { get } from '../api.js';
import {
  apiPath,
  count,
  duration,
  Empty,
  changesOf,
  html,
  jobPath,
  Loaded,
  ModelSelect,
  modelPath,
  NONE,
  Pages,
  Panel,
  Select,
  State,
  Table,
  Text,
  Time,
  to,
  usePoll,
  useEffect,
  useState,
} from '../parts.js'; // prettier-ignore

const STATES = ['queued', 'scheduled', 'running', 'succeeded', 'failed', 'expired', 'cancelled'];
const SINCE = [
  ['', 'any time'],
  ['900', 'last 15 minutes'],
  ['3600', 'last hour'],
  ['86400', 'last day'],
  ['604800', 'last week'],
];
const CHIPS = ['id', 'error', 'metadata', 'group', 'key', 'since', 'until'];
const LIMIT = 50;

/**
 * What a text in the search means: the id of a job that exists, members of metadata, or words of an error.
 * @param {string} text
 * @returns {Promise<Record<string, string>>}
 */
async function meaning(text) {
  if (/^[\w.-]+=/.test(text) || text.startsWith('{')) return { metadata: text };
  if (/^[\w.:@-]{1,128}$/.test(text)) {
    const found = await get(apiPath('jobs'), { query: { id: text } }).catch(() => ({ jobs: [] }));
    if (found.jobs.length) return { id: text };
  }
  return { error: text };
}

/** @typedef {any} Job */
/** The ids of the server begin with their time, so their ends differ. @param {string} id */
const short = (id) => (id.length > 24 ? `…${id.slice(-20)}` : id);
/** Seconds of the stages that begin before and after the job runs; null while they are not known. */
const waited = (/** @type {Job} */ job) =>
  job.timings && (job.timings.queued + job.timings.hold + job.timings.device_wait) / 1000;
const ran = (/** @type {Job} */ job) =>
  job.timings && (job.timings.preprocess + job.timings.inference + job.timings.postprocess) / 1000;
const metadata = (/** @type {Job} */ job) =>
  Object.entries(job.metadata ?? {})
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    .join(' ');

/** @type {import('../parts.js').Column[]} */
const COLUMNS = [
  {
    name: 'Job',
    cell: (job) => html`<a class="mono id" href=${jobPath(job.id)} title=${job.id}>${short(job.id)}</a>`,
  },
  {
    name: 'Model',
    wide: true,
    cell: (job) => html`<a class="plain" href=${modelPath(job.model)}>${job.model}</a>`,
  },
  { name: 'State', cell: (job) => html`<${State} of=${job.status} />` },
  { name: 'Created', num: true, cell: (job) => html`<${Time} at=${job.created_at} />` },
  { name: 'Waited', num: true, wide: true, cell: (job) => duration(waited(job)) },
  { name: 'Ran', num: true, wide: true, cell: (job) => duration(ran(job)) },
  { name: 'Attempts', num: true, wide: true, cell: (job) => count(job.attempts) },
  { name: 'Batch', num: true, wide: true, cell: (job) => count(job.batch_size) },
  {
    name: 'Error or metadata',
    wide: true,
    cell: (job) =>
      job.error
        ? html`<${Text} text=${job.error.message} />`
        : html`<span class="muted"><${Text} text=${metadata(job) || NONE} /></span>`,
  },
]; // prettier-ignore

/** @param {{ query: URLSearchParams }} of */
export default function Jobs({ query }) {
  const { q, search, ...filters } = Object.fromEntries(query);
  const [changed, go] = changesOf('/jobs', filters);
  const [text, setText] = useState('');
  // `since` in the address is a number of seconds before now, or a time.
  const since = /^\d{1,7}$/.test(filters.since ?? '')
    ? `${Math.floor(Date.now() / 60_000) * 60 - Number(filters.since)}`
    : filters.since;
  const asked = { ...filters, since, limit: LIMIT };
  const jobs = usePoll(q === undefined ? '/api/v1/jobs' : null, {
    query: asked,
    every: filters.cursor ? 10_000 : 2000,
  });
  useEffect(() => {
    if (q !== undefined) meaning(q).then((found) => location.replace(to('/jobs', found)));
  }, [q]);
  useEffect(() => {
    if (search) /** @type {HTMLElement} */ (document.querySelector('[data-search]')).focus();
  }, [search]);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const words = text.trim();
    setText('');
    if (words) go({ id: undefined, ...(await meaning(words)) });
  };
  const chips = CHIPS.filter(
    (name) => filters[name] && !(name === 'since' && SINCE.some(([s]) => s === filters.since)),
  );
  const filtered = chips.length > 0 || filters.model || filters.status || filters.since;
  return html`<div class="head"><h1>Jobs</h1></div>
    <form class="filters" role="search" onSubmit=${submit}>
      <input data-search type="search" size="40" aria-label="Search jobs" placeholder="Job id, words of an error, or name=value" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
      <button type="submit">Search</button>
      <${ModelSelect} value=${filters.model} go=${go} />
      <${Select} label="State" value=${filters.status} onChange=${(/** @type {string} */ status) => go({ status })} options=${[['', 'all states'], ...STATES.map((s) => [s, s])]} />
      <${Select} label="Created" value=${filters.since} onChange=${(/** @type {string} */ value) => go({ since: value })} options=${SINCE} />
      <input aria-label="API key" placeholder="id of an API key" size="16" value=${filters.key ?? ''} onChange=${(/** @type {any} */ event) => go({ key: event.target.value.trim() })} />
      ${filtered && html`<a class="button" href="#/jobs">Clear</a>`}
    </form>
    ${
      chips.length > 0 &&
      html`<p class="chips">${chips.map(
        (name) => html`<button class="chip" title="Take this filter away" onClick=${() => go({ [name]: undefined })}>
      ${name} <b><${Text} text=${filters[name]} max=${60} /></b> ×</button>`,
      )}</p>`
    }
    <${Loaded} of=${jobs}>${() => html`<${Panel}>
      <${Table} label="Jobs" columns=${COLUMNS} rows=${jobs.data.jobs} id=${(/** @type {Job} */ job) => job.id}
        empty=${
          filtered
            ? html`<${Empty} title="No job fits these filters">Results are kept for a while only. <a href="#/jobs">Show all jobs.</a></${Empty}>`
            : html`<${Empty} title="There is no job yet"><a href="#/try">Try a model</a>, or send one: <code>headrace submit MODEL --json '{"x": 1}' --wait</code></${Empty}>`
        } />
      <${Pages} filters=${filters} next=${jobs.data.cursor} changed=${changed} />
    </${Panel}>`}</${Loaded}>`;
}
