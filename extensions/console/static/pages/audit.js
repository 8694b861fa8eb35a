/** Audit: who changed what, the newest first. */

import {
  Empty,
  changesOf,
  html,
  jobPath,
  Loaded,
  Pages,
  Panel,
  POLL_MS,
  Select,
  Table,
  Text,
  Time,
  usePoll,
} from '../parts.js';

/** What an action is called; others are shown as the API names them. @type {Record<string, string>} */
const WORDS = {
  registry: 'changed a model',
  pause_queue: 'paused a queue',
  resume_queue: 'resumed a queue',
  purge_queue: 'purged a queue',
  retry_failures: 'retried failures',
  discard_failures: 'discarded failures',
  cancel_job: 'cancelled a job',
  cancel_many: 'cancelled jobs',
  retry_job: 'retried a job',
  cancel_run: 'cancelled a run',
  redeliver_webhook: 'sent a webhook again',
  drain_worker: 'drained a worker',
  resume_worker: 'resumed a worker',
  create_key: 'made a key',
  rotate_key: 'renewed a key',
  revoke_key: 'revoked a key',
  requeue_dead_letters: 'requeued dead letters',
  purge_dead_letters: 'deleted dead letters',
};

/** Their targets are jobs, which have pages. */
const OF_JOBS = ['cancel_job', 'retry_job'];

/** @typedef {any} Entry */

/** @param {{ query: URLSearchParams }} of */
export default function Audit({ query }) {
  const filters = Object.fromEntries(query);
  const [changed, go] = changesOf('/audit', filters);
  const poll = usePoll('/api/v1/audit', {
    query: { ...filters, limit: 100 },
    every: filters.cursor ? 30_000 : POLL_MS,
  });
  const keys = usePoll('/api/v1/keys', { every: 60_000 });
  const names = Object.fromEntries((keys.data?.keys ?? []).map((/** @type {any} */ key) => [key.id, key.name]));
  /** @type {import('../parts.js').Column[]} */
  const columns = [
    { name: 'When', cell: (e) => html`<${Time} at=${e.at} />` },
    {
      name: 'Who',
      cell: (e) =>
        html`<a href=${changed({ by: e.by })} title=${e.by}><${Text} text=${names[e.by] ?? e.by} max=${60} /></a>`,
    },
    { name: 'What', cell: (e) => WORDS[e.action] ?? e.action.replace(/_/g, ' ') },
    {
      name: 'Of',
      cell: (e) =>
        e.target &&
        html`<a class="mono" href=${OF_JOBS.includes(e.action) ? jobPath(e.target) : changed({ target: e.target })}><${Text} text=${e.target} max=${60} /></a>`,
    },
    { name: 'Detail', wide: true, cell: (e) => html`<${Text} text=${e.detail} max=${160} />` },
  ];
  const filtered = filters.by || filters.target;
  const key = keys.data?.keys ?? [];
  return html`<div class="head"><h1>Audit</h1></div>
    <div class="filters">
      <${Select} label="Who" value=${filters.by} onChange=${(/** @type {string} */ by) => go({ by })}
        options=${[['', 'everybody'], ...key.map((/** @type {any} */ k) => [k.id, k.name]), ...(filters.by && !names[filters.by] ? [[filters.by, filters.by]] : [])]} />
      ${filters.target && html`<button class="chip" title="Take this filter away" onClick=${() => go({ target: undefined })}>of <b><${Text} text=${filters.target} max=${60} /></b> ×</button>`}
      ${filtered && html`<a class="button" href="#/audit">Clear</a>`}
    </div>
    <${Loaded} of=${poll}>${() => html`<${Panel}><${Table} label="Changes" rows=${poll.data.entries} id=${(/** @type {Entry} */ e) => e.id} columns=${columns}
      empty=${
        filtered
          ? html`<${Empty} title="No change fits these filters"><a href="#/audit">Show all changes.</a></${Empty}>`
          : html`<${Empty} title="Nobody has changed anything yet">Changes of queues, models, keys and workers are listed here, by console, command or API alike.</${Empty}>`
      } />
      <${Pages} filters=${filters} next=${poll.data.cursor} changed=${changed} /></${Panel}>`}</${Loaded}>`;
}
