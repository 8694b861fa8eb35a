/** Workers and devices: memory, busy share, what is loaded, and the drain of a worker. */

import { send } from '../api.js';
import {
  Action,
  apiPath,
  Bar,
  bytes,
  count,
  Empty,
  Facts,
  html,
  Loaded,
  modelPath,
  NONE,
  Panel,
  percent,
  State,
  Table,
  Text,
  Time,
  usePoll,
} from '../parts.js';

/** @typedef {any} Worker */

const tone = (/** @type {number} */ share) => (share > 0.95 ? 'bad' : share > 0.85 ? 'warn' : '');

/** A used part of something, in numbers and as a bar. @param {{ used: number | null, all: number | null, name: string }} of */
const Used = ({ used, all, name }) =>
  used === null || !all
    ? NONE
    : html`${bytes(used)} <span class="muted">of ${bytes(all)}</span><br /><${Bar} share=${used / all} tone=${tone(used / all)} label=${`${name}: ${percent(used / all)} used`} />`;

/** @param {{ share: number | null, name: string }} of */
const Busy = ({ share, name }) =>
  share === null
    ? NONE
    : html`${percent(share)}<br /><${Bar} share=${share} label=${`${name}: ${percent(share)} busy`} />`;

const Host = (/** @type {{ of: any }} */ { of }) =>
  html`<${Facts} of=${[
    [`Host ${of.name}`, html`<${Busy} share=${of.cpu_ratio} name=${`${of.cpus} CPUs`} />`],
    [
      'Memory',
      html`<${Used} used=${of.memory_bytes - of.memory_available_bytes} all=${of.memory_bytes} name="memory" />`,
    ],
    ['Disk', html`<${Used} used=${of.disk_bytes - of.disk_available_bytes} all=${of.disk_bytes} name="disk" />`],
  ]} />`;

const Devices = (/** @type {{ of: any[] }} */ { of }) =>
  html`<${Table} label="Devices" rows=${of} id=${(/** @type {any} */ d) => d.id} columns=${[
    {
      name: 'Device',
      cell: (/** @type {any} */ d) =>
        html`<b>${d.id}</b> <span class="muted"><${Text} text=${d.name} max=${40} /></span>`,
    },
    { name: 'Busy', cell: (/** @type {any} */ d) => html`<${Busy} share=${d.busy_ratio} name=${`device ${d.id}`} />` },
    {
      name: 'Memory',
      cell: (/** @type {any} */ d) =>
        html`<${Used} used=${d.memory_used_bytes} all=${d.memory_bytes} name=${`memory of ${d.id}`} />`,
    },
    {
      name: 'Temperature',
      num: true,
      wide: true,
      cell: (/** @type {any} */ d) => (d.temperature_celsius === null ? NONE : `${d.temperature_celsius} °C`),
    },
    {
      name: 'Power',
      num: true,
      wide: true,
      cell: (/** @type {any} */ d) => (d.power_watts === null ? NONE : `${Math.round(d.power_watts)} W`),
    },
  ]} />`;

/** @type {import('../parts.js').Column[]} */
const MODELS = [
  {
    name: 'Model',
    cell: (
      m,
    ) => html`<a class="strong" href=${modelPath(m.model)}>${m.model}</a> <span class="muted">${m.version}</span>
      ${m.error && html`<div class="bad-text"><${Text} text=${m.error.trim().split('\n').pop()} max=${160} /></div>`}`,
  },
  { name: 'State', cell: (m) => html`<${State} of=${m.state} />` },
  { name: 'Ready', num: true, cell: (m) => `${m.ready_replicas} of ${m.replicas}` },
  { name: 'Jobs', num: true, cell: (m) => count(m.jobs) },
  { name: 'Device', wide: true, cell: (m) => m.device || NONE },
  { name: 'Memory', num: true, wide: true, cell: (m) => (m.memory_bytes ? bytes(m.memory_bytes) : NONE) },
  {
    name: 'Died',
    num: true,
    wide: true,
    cell: (m) => html`<span class=${m.restarts ? 'warn-text' : ''}>${count(m.restarts)}</span>`,
  },
  {
    name: 'Processes',
    wide: true,
    cell: (m) =>
      m.processes.map(
        (/** @type {any} */ p) =>
          html`<span class="mono" title=${`${p.state} since ${p.since}${p.gpu_memory_bytes === null ? '' : `, ${bytes(p.gpu_memory_bytes)} of GPU memory`}`}>${p.pid}</span> `,
      ),
  },
];

/** @param {{ of: Worker, done: () => void }} of */
function Actions({ of: worker, done }) {
  if (!worker.can_drain) return null;
  const change = async (/** @type {string} */ verb) => {
    await send('POST', apiPath('workers', worker.worker, verb));
    done();
    return verb === 'drain'
      ? `${worker.node} finishes what runs, and claims nothing more.`
      : `${worker.node} claims jobs again.`;
  };
  if (worker.state !== 'serving')
    return html`<${Action} label="Resume" kind="primary" run=${() => change('resume')} />`;
  return html`<${Action} label="Drain" run=${() => change('drain')} confirm=${html`<h2>Drain ${worker.node}?</h2>
    <p>It finishes ${worker.jobs ? `what it runs of its ${count(worker.jobs)} jobs` : 'what it runs'}, and claims nothing more until you resume it. Its models stay loaded.</p>`} />`;
}

/** @param {{ of: Worker, done: () => void }} of */
const One = ({ of: worker, done }) => html`
  <${Panel} title=${html`<${Text} text=${worker.node} max=${80} />`} side=${html`<${State} of=${worker.state} tone=${worker.state === 'serving' ? 'ok' : 'warn'} />
    <span>${count(worker.jobs)} ${worker.jobs === 1 ? 'job' : 'jobs'}</span><span>started <${Time} at=${worker.started_at} /></span>
    ${worker.labels.map((/** @type {string} */ label) => html`<span class="chip"><${Text} text=${label} max=${40} /></span>`)}
    <${Actions} of=${worker} done=${done} />`}>
    ${worker.host && html`<${Host} of=${worker.host} />`}
    ${worker.devices.length > 0 && html`<${Devices} of=${worker.devices} />`}
    <${Table} label=${`Models of ${worker.node}`} rows=${worker.models} id=${(/** @type {any} */ m) => `${m.model}@${m.version}`} columns=${MODELS}
      empty=${html`<${Empty} title="It has no model loaded">${worker.unloaded.length ? html`At their first job it loads <${Text} text=${worker.unloaded.join(', ')} />.` : 'Its labels may fit no model.'}</${Empty}>`} />
  </${Panel}>`;

export default function Workers() {
  const poll = usePoll('/api/v1/workers');
  const workers = /** @type {Worker[]} */ (poll.data?.workers ?? []);
  const sum = (/** @type {(worker: Worker) => number} */ of) => workers.reduce((n, worker) => n + of(worker), 0);
  const facts = [
    ['workers', count(workers.length)],
    ['jobs', count(sum((w) => w.jobs))],
    ['devices', count(sum((w) => w.devices.length))],
    [
      'processes',
      count(sum((w) => w.models.reduce((/** @type {number} */ n, /** @type {any} */ m) => n + m.processes.length, 0))),
    ],
    ['drained', count(sum((w) => (w.state === 'serving' ? 0 : 1)))],
  ];
  return html`<div class="head"><h1>Workers and devices</h1></div>
    <${Loaded} of=${poll}>${() => html`
      ${workers.length > 0 && html`<p class="totals">${facts.map(([name, value]) => html`<span>${name} <b>${value}</b></span>`)}</p>`}
      ${workers.map((worker) => html`<${One} key=${worker.worker} of=${worker} done=${poll.refresh} />`)}
      ${workers.length === 0 && html`<${Panel}><${Empty} title="No worker runs, so no job runs">Start one on a host with a GPU or a free core: <code>headrace worker</code></${Empty}></${Panel}>`}`}</${Loaded}>`;
}
