/** Webhooks: the deliveries of all jobs, failing ones first, and one more try. */

import { send } from '../api.js';
import {
  Action,
  apiPath,
  Choice,
  count,
  duration,
  Empty,
  html,
  jobPath,
  Loaded,
  NONE,
  Panel,
  State,
  Table,
  Text,
  Time,
  to,
  usePoll,
} from '../parts.js';

/** @typedef {any} Delivery */

const failing = (/** @type {Delivery} */ one) => one.state !== 'delivered' && Boolean(one.attempts.at(-1)?.error);
const outcome = (/** @type {any} */ attempt) => attempt.error ?? `status ${attempt.status}`;

/** @param {{ of: Delivery, done: () => void }} of */
function Again({ of: one, done }) {
  const again = async () => {
    await send('POST', apiPath('jobs', one.job, 'webhooks', 'redeliver'), { id: one.id });
    done();
    return 'It is sent again within a second.';
  };
  const confirm =
    one.state === 'delivered' &&
    html`<h2>Send it again?</h2><p>The receiver has answered it before. It gets the same id again.</p>`;
  return html`<${Action} label="Send again" scope="submit" run=${again} confirm=${confirm} />`;
}

/** @param {{ of: Delivery, done: () => void }} of */
const Attempts = ({ of: one, done }) => html`
  <${Panel} title=${html`Delivery <span class="mono">${one.id}</span>`} side=${html`<${Again} of=${one} done=${done} /><a class="button" href="#/webhooks">Close</a>`}>
    <p><${State} of=${one.state} tone=${failing(one) ? 'bad' : undefined} /> ${one.type} of <a class="mono" href=${jobPath(one.job)}>${one.job}</a> to <span class="mono"><${Text} text=${one.url} max=${300} /></span></p>
    <${Table} label="Attempts" rows=${one.attempts} id=${(/** @type {any} */ a) => a.at} columns=${[
      { name: 'At', cell: (/** @type {any} */ a) => html`<${Time} at=${a.at} />` },
      { name: 'Took', num: true, cell: (/** @type {any} */ a) => duration(a.duration_ms / 1000) },
      {
        name: 'Outcome',
        cell: (/** @type {any} */ a) =>
          html`<span class=${a.error || a.status >= 300 ? 'bad-text' : ''}><${Text} text=${outcome(a)} max=${300} /></span>`,
      },
    ]} empty=${html`<${Empty} title="It has not been tried yet">The background worker sends it. <code>headrace background</code></${Empty}>`} />
  </${Panel}>`;

/** @param {{ query: URLSearchParams }} of */
export default function Webhooks({ query }) {
  const state = query.get('state') ?? '';
  const poll = usePoll('/api/v1/webhooks', { query: { state, limit: 200 } });
  const chosen = poll.data?.deliveries.find((/** @type {Delivery} */ one) => one.id === query.get('id'));
  /** @type {import('../parts.js').Column[]} */
  const columns = [
    { name: 'State', cell: (d) => html`<${State} of=${d.state} tone=${failing(d) ? 'bad' : undefined} />` },
    {
      name: 'Event',
      cell: (d) => html`<a class="strong" href=${to('/webhooks', { state, id: d.id })}>${d.type}</a>
        <div class="muted"><${Text} text=${d.url} max=${48} /></div>`,
    },
    {
      name: 'Job',
      wide: true,
      cell: (d) => html`<a class="mono id" href=${jobPath(d.job)} title=${d.job}>${d.job}</a>`,
    },
    { name: 'Tries', num: true, wide: true, by: (d) => d.tries, cell: (d) => count(d.tries) },
    {
      name: 'Last outcome',
      cell: (d) =>
        d.attempts.length
          ? html`<span class=${failing(d) ? 'bad-text' : ''}><${Text} text=${outcome(d.attempts.at(-1))} max=${60} /></span>
            ${d.next_attempt_at && html`<div class="muted">again <${Time} at=${d.next_attempt_at} /></div>`}`
          : NONE,
    },
    { name: 'Created', num: true, by: (d) => d.created_at, cell: (d) => html`<${Time} at=${d.created_at} />` },
    { name: '', num: true, wide: true, cell: (d) => html`<${Again} of=${d} done=${poll.refresh} />` },
  ];
  return html`<div class="head"><h1>Webhooks</h1>
      <div class="actions"><${Choice} label="State" value=${state} onChange=${(/** @type {string} */ next) => {
        location.hash = to('/webhooks', { state: next });
      }} options=${[['', 'all'], ['pending', 'pending'], ['failed', 'failed'], ['delivered', 'delivered']]} /></div></div>
    ${chosen && html`<${Attempts} of=${chosen} done=${poll.refresh} />`}
    <${Loaded} of=${poll}>${() => html`<${Panel}><${Table} label="Deliveries" rows=${poll.data.deliveries} id=${(/** @type {Delivery} */ d) => d.id} columns=${columns}
      empty=${
        state
          ? html`<${Empty} title=${`No delivery is ${state}`}><a href="#/webhooks">Show all deliveries.</a></${Empty}>`
          : html`<${Empty} title="No webhook was sent lately">A job with the option <b>webhook</b> tells a URL how it ended: <code>headrace submit MODEL INPUT --webhook https://…</code></${Empty}>`
      } /></${Panel}>`}</${Loaded}>`;
}
