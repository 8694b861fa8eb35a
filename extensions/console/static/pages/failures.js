/** Failures: why jobs failed, by cause, over time; a whole group is retried or let go. */

import { send } from '../api.js';
import {
  Action,
  apiPath,
  Chart,
  Choice,
  count,
  Empty,
  changesOf,
  html,
  jobPath,
  Loaded,
  ModelSelect,
  modelPath,
  Panel,
  Spark,
  Table,
  Text,
  Time,
  to,
  usePoll,
  useState,
  visible,
} from '../parts.js';

/** How far back, and how long a part of that time is, in seconds. @type {Record<string, [string, number]>} */
const SPANS = { 3600: ['1 hour', 60], 86400: ['1 day', 1800], 604800: ['7 days', 14_400] };
const SPAN = '86400';

/** @typedef {any} Group */

/** The beginnings of the parts of a span until now, in seconds. @param {number} span @param {number} step */
function parts(span, step) {
  const last = Math.floor(Date.now() / 1000 / step) * step;
  const number = Math.floor(span / step);
  return Array.from({ length: number }, (_, i) => last - (number - 1 - i) * step);
}

/** How many of a group's jobs failed in each part. @param {Group} group @param {number[]} times */
function counts(group, times) {
  const by = new Map(Object.entries(group.over_time).map(([at, n]) => [Date.parse(at) / 1000, Number(n)]));
  return times.map((at) => by.get(at) ?? 0);
}

/** A bar of nothing would still be a line. @param {number[]} of */
const bars = (of) => of.map((n) => n || null);

const name = (/** @type {Group} */ group) => group.exception ?? group.type;
/** With the exact number, as people confirm it. @param {number} n */
const many = (n) => `${n.toLocaleString('en')} failed ${n === 1 ? 'job' : 'jobs'}`;

/** @param {{ of: Group, done: () => void }} of */
function Actions({ of: group, done }) {
  // With its number, so that nothing happens to jobs that failed after the question.
  const change = async (/** @type {string} */ verb) => {
    try {
      return await send('POST', apiPath('failures', group.group, verb), { count: group.count });
    } finally {
      done();
    }
  };
  const retry = async () => {
    const { retried, left } = await change('retry');
    const others = Object.values(left);
    const why = [...new Set(others)].join(', ');
    return `${count(retried)} jobs are in their queues again.${others.length ? ` ${count(others.length)} could not be retried: ${why}.` : ''}`;
  };
  const discard = async () => `${count((await change('discard')).discarded)} failures are discarded.`;
  const of = html`<p><b>${visible(name(group))}</b> <span class="muted">in ${group.model}${group.where && `, ${visible(group.where)}`}</span></p>`;
  return html`<span class="actions">
    <${Action} label="Retry" title=${`Retry ${many(group.count)}`} run=${retry} confirm=${html`<h2>Retry ${many(group.count)}?</h2>${of}<p>They go to the end of their queues with their ids and inputs.</p>`} />
    <${Action} label="Discard" kind="danger" title=${`Discard ${many(group.count)}`} run=${discard} confirm=${html`<h2>Discard ${many(group.count)}?</h2>${of}<p>Their inputs and dead letters are deleted. They cannot be retried.</p>`} />
  </span>`;
}

/** @param {{ group: Group, times: number[], done: () => void }} of */
const Chosen = ({ group, times, done }) => html`
  <${Panel} title=${html`${many(group.count)}: <${Text} text=${name(group)} max=${120} />`} side=${html`<${Actions} of=${group} done=${done} /><a class="button" href=${to('/jobs', { group: group.group })}>All its jobs</a>`}>
    <div class="body"><${Text} block text=${group.message} max=${2000} /></div>
    <p class="muted"><span class="mono"><${Text} text=${group.where ?? 'no line of a handler'} /></span> of <a href=${modelPath(group.model)}>${group.model}</a>,
      first <${Time} at=${group.first_at} />, last <${Time} at=${group.last_at} /></p>
    <${Chart} label="Failures of this group over time" times=${times} lines=${[{ label: 'failed', tone: 'bad', bars: true, values: bars(counts(group, times)) }]} />
    <p class="chips">Newest: ${group.jobs.map((/** @type {string} */ id) => html`<a class="mono id" href=${jobPath(id)} title=${id}>${id}</a>`)}</p>
  </${Panel}>`;

/** @param {{ query: URLSearchParams }} of */
export default function Failures({ query }) {
  const filters = Object.fromEntries(query);
  const [changed, go] = changesOf('/failures', filters);
  const span = filters.span in SPANS ? filters.span : SPAN;
  const step = SPANS[span][1];
  const [text, setText] = useState(filters.error ?? '');
  const times = parts(Number(span), step);
  const poll = usePoll('/api/v1/failures', {
    query: { model: filters.model, error: filters.error, since: times[0], bucket_s: step, limit: 200 },
  });
  const search = (/** @type {Event} */ event) => {
    event.preventDefault();
    go({ error: text.trim() });
  };
  /** @type {Group[]} */
  const groups = poll.data?.failures ?? [];
  const chosen = groups.find((group) => group.group === filters.group);
  const total = groups.reduce((n, group) => n + group.count, 0);
  const all = groups.map((group) => counts(group, times));
  const sums = times.map((_, i) => all.reduce((n, of) => n + of[i], 0));
  /** @type {import('../parts.js').Column[]} */
  const columns = [
    { name: 'Jobs', num: true, by: (g) => g.count, cell: (g) => html`<b>${count(g.count)}</b>` },
    {
      name: 'Error',
      by: name,
      cell: (g) => html`<a class="strong" href=${changed({ group: g.group })}><${Text} text=${name(g)} max=${60} /></a>
        <div class="muted"><${Text} text=${g.message} max=${120} /></div>`,
    },
    {
      name: 'Model',
      wide: true,
      by: (g) => g.model,
      cell: (g) => html`<a class="plain" href=${modelPath(g.model)}>${g.model}</a>`,
    },
    {
      name: 'Line',
      wide: true,
      cell: (g) => html`<span class="mono"><${Text} text=${g.where ?? ''} max=${60} /></span>`,
    },
    {
      name: 'Over time',
      wide: true,
      cell: (g) => html`<${Spark} tone="bad" values=${counts(g, times)} label=${`Failures in ${SPANS[span][0]}`} />`,
    },
    { name: 'First', num: true, wide: true, by: (g) => g.first_at, cell: (g) => html`<${Time} at=${g.first_at} />` },
    { name: 'Last', num: true, by: (g) => g.last_at, cell: (g) => html`<${Time} at=${g.last_at} />` },
    { name: '', num: true, wide: true, cell: (g) => html`<${Actions} of=${g} done=${poll.refresh} />` },
  ];
  const filtered = filters.model || filters.error;
  return html`<div class="head"><h1>Failures</h1>
      <div class="actions"><${Choice} label="Time" value=${span} options=${Object.entries(SPANS).map(([s, [label]]) => [s, label])} onChange=${(/** @type {string} */ to) => go({ span: to })} /></div></div>
    <form class="filters" role="search" onSubmit=${search}>
      <input data-search type="search" size="36" aria-label="Search failures" placeholder="Words of an error or a line" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
      <${ModelSelect} value=${filters.model} go=${go} />
      ${filtered && html`<a class="button" href=${to('/failures', { span })} onClick=${() => setText('')}>Clear</a>`}
    </form>
    <${Loaded} of=${poll}>${() => html`
      ${
        groups.length > 0 &&
        !chosen &&
        html`<${Panel} title=${many(total)} side=${`${count(groups.length)} ${groups.length === 1 ? 'cause' : 'causes'} in ${SPANS[span][0]}`}>
        <${Chart} label="Failures over time" times=${times} lines=${[{ label: 'failed', tone: 'bad', bars: true, values: bars(sums) }]} /></${Panel}>`
      }
      ${chosen && html`<${Chosen} group=${chosen} times=${times} done=${poll.refresh} />`}
      ${filters.group && !chosen && html`<p class="note">That group has no failures now. <a href=${changed({ group: undefined })}>Show all groups.</a></p>`}
      <${Panel}><${Table} label="Causes of failures" rows=${groups} id=${(/** @type {Group} */ g) => g.group} columns=${columns}
        empty=${
          filtered
            ? html`<${Empty} title="No failure fits these filters">Choose a longer time, or <a href="#/failures">show all failures.</a></${Empty}>`
            : html`<${Empty} title=${`No job has failed in ${SPANS[span][0]}`}>Failed jobs are kept for a week by default. <a href="#/jobs">Look at all jobs.</a></${Empty}>`
        } /></${Panel}>`}</${Loaded}>`;
}
