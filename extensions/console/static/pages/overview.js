/** Overview: what is wrong, in words, and each model in numbers. As Models: the same table alone, with a filter. */

import { can, get, send } from '../api.js';
import {
  Action,
  apiPath,
  Bar,
  bytes,
  count,
  duration,
  Empty,
  html,
  Loaded,
  modelPath,
  NONE,
  Panel,
  percent,
  Spark,
  State,
  Table,
  Words,
  to,
  usePoll,
  useState,
} from '../parts.js'; // prettier-ignore

/** @typedef {any} Model */

/** What mends a finding: a button, and the page that says more. @param {{ of: any, done: () => void }} of */
function Mend({ of: one, done }) {
  const resume = async () => {
    const { queue } = await get(apiPath('models', one.model));
    await send('POST', apiPath('queues', queue, 'resume'));
    done();
    return 'The queue goes on.';
  };
  const reload = async () => {
    await send('POST', apiPath('models', one.model, 'reload'));
    done();
    return 'New model processes start.';
  };
  const [page, words] = ['failures-rise', 'dead-letters'].includes(one.code)
    ? [to('/failures', { model: one.model }), 'Open its failures']
    : one.model
      ? [modelPath(one.model), `Open ${one.model}`]
      : ['workers', 'disks', 'clocks'].includes(one.check) && can('manage')
        ? ['#/workers', 'Open workers']
        : [];
  return html`<span class="actions">
    ${one.code === 'paused' && html`<${Action} label="Resume" run=${resume} />`}
    ${['load-failed', 'crash-loop'].includes(one.code) && one.model && html`<${Action} label="Reload" run=${reload} />`}
    ${page && html`<a href=${page}>${words}</a>`}</span>`;
}

/** @param {{ of: any[], done: () => void }} of */
function Findings({ of, done }) {
  if (!of.length) return html`<p class="calm"><${State} of="nothing is wrong" tone="ok" /></p>`;
  return html`<ul class="findings" aria-label="What is wrong">
    ${of.map(
      (one) => html`<li class=${one.severity === 'fail' ? 'bad' : 'warn'}>
        <div><${State} of=${one.text} tone=${one.severity === 'fail' ? 'bad' : 'warn'} /><p class="muted"><${Words} text=${one.hint} /></p></div>
        <${Mend} of=${one} done=${done} /></li>`,
    )}
  </ul>`;
}

/** @param {{ of: any }} of */
function Totals({ of }) {
  const sum = (/** @type {string} */ name) =>
    of.models.reduce((/** @type {number} */ n, /** @type {Model} */ m) => n + m[name], 0);
  const redis =
    of.redis && `${bytes(of.redis.used_bytes)}${of.redis.limit_bytes ? ` of ${bytes(of.redis.limit_bytes)}` : ''}`;
  const all = [
    ['waiting', count(sum('queued'))],
    ['running', count(sum('in_flight'))],
    ['scheduled', count(sum('scheduled'))],
    ['workers', of.workers],
    ['background', of.background_workers],
    ['Redis', redis],
  ];
  return html`<p class="totals">${all.map(([name, value]) => html`<span>${name} <b>${value ?? NONE}</b></span>`)}</p>`;
}

/** Of the newest full minute. @param {string} name */
const last = (name) => (/** @type {Model} */ m) => m.last_minute?.[name];
const errors = (/** @type {Model} */ m) => {
  const { failed, succeeded } = m.last_minute ?? {};
  return failed && failed / (failed + succeeded);
};

/**
 * @param {(model: string, name: string) => (number | null)[]} hour
 * @returns {import('../parts.js').Column[]}
 */
const columns = (hour) => {
  /** A number with its last hour beside it. */
  const over = (
    /** @type {any} */ value,
    /** @type {string} */ model,
    /** @type {string} */ name,
    /** @type {string} */ label,
    tone = '',
  ) =>
    html`<span class="over"><${Spark} values=${hour(model, name)} label=${label} tone=${tone} /><span>${value}</span></span>`;
  return [
    { name: 'Model', by: (m) => m.name, cell: (m) => html`<a class="strong" href=${modelPath(m.name)}>${m.name}</a>` },
    { name: 'State', by: (m) => m.state, cell: (m) => html`<${State} of=${m.paused ? 'paused' : m.state} />` },
    {
      name: 'Ready',
      num: true,
      wide: true,
      by: (m) => m.ready_replicas,
      cell: (m) => `${m.ready_replicas} of ${m.replicas}`,
    },
    {
      name: 'Waiting',
      num: true,
      by: (m) => m.queued,
      cell: (m) =>
        html`<a class="plain" href=${to('/jobs', { model: m.name, status: 'queued' })}>${count(m.queued)}</a>`,
    },
    { name: 'Oldest', num: true, wide: true, by: (m) => m.oldest_age_s, cell: (m) => duration(m.oldest_age_s) },
    {
      name: 'Jobs / min',
      num: true,
      by: last('submitted'),
      cell: (m) => over(count(last('submitted')(m)), m.name, 'submitted', 'Jobs a minute, last hour'),
    },
    { name: 'p50', num: true, wide: true, by: last('p50_ms'), cell: (m) => ms(last('p50_ms')(m)) },
    {
      name: 'p99',
      num: true,
      wide: true,
      by: last('p99_ms'),
      cell: (m) => over(ms(last('p99_ms')(m)), m.name, 'p99_ms', 'p99, last hour'),
    },
    {
      name: 'Errors',
      num: true,
      by: errors,
      cell: (m) =>
        over(
          html`<a class=${(errors(m) ?? 0) > 0 ? 'bad-text' : 'plain'} href=${to('/jobs', { model: m.name, status: 'failed' })}>${percent(errors(m))}</a>`,
          m.name,
          'failed',
          'Failed jobs a minute, last hour',
          'bad',
        ),
    },
    { name: 'Batch', num: true, wide: true, by: last('batch_size'), cell: (m) => count(last('batch_size')(m)) },
    {
      name: 'Busy',
      num: true,
      wide: true,
      by: last('busy'),
      cell: (m) => html`<${Bar} share=${last('busy')(m) ?? 0} label=${`busy ${percent(last('busy')(m))}`} />`,
    },
  ]; // prettier-ignore
}; // prettier-ignore

const ms = (/** @type {number | null | undefined} */ n) => duration(n === null || n === undefined ? n : n / 1000);

/** @param {{ path: string }} of */
export default function Overview({ path }) {
  const [text, setText] = useState('');
  const overview = usePoll('/api/v1/overview');
  const series = usePoll('/api/v1/series', { every: 20_000 });
  const hour = (/** @type {string} */ model, /** @type {string} */ name) => series.data?.models[model]?.[name] ?? [];
  const all = path === '/';
  const rows = () =>
    overview.data.models.filter((/** @type {Model} */ m) => m.name.toLowerCase().includes(text.toLowerCase()));
  const search = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (all && text) location.hash = to('/jobs', { q: text });
  };
  return html`<div class="head"><h1>${all ? 'Overview' : 'Models'}</h1>
      <form class="actions" role="search" onSubmit=${search}>
        <input data-search type="search" size="34" aria-label=${all ? 'Search jobs' : 'Filter models'} value=${text}
          placeholder=${all ? 'Search jobs: id, error, name=value' : 'Filter by name'} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
      </form></div>
    <${Loaded} of=${overview}>${() => html`
      ${all && html`<${Findings} of=${overview.data.findings} done=${overview.refresh} /><${Totals} of=${overview.data} />`}
      <${Panel}>
        <${Table} label="Models" rows=${all ? overview.data.models : rows()} id=${(/** @type {Model} */ m) => m.name} columns=${columns(hour)}
          empty=${html`<${Empty} title=${text ? 'No model has this name' : 'No model is registered'}>Add one to the models file and start again: <code>headrace new my_model</code></${Empty}>`} />
      </${Panel}>`}</${Loaded}>`;
}
