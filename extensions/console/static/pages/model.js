/** Model: where it runs, how it does, and what can be changed while it runs. */

import { can, get, send } from '../api.js';
import {
  Action,
  apiPath,
  Bar,
  Chart,
  Choice,
  count,
  duration,
  Facts,
  Fault,
  html,
  Loaded,
  NONE,
  Panel,
  percent,
  State,
  Table,
  Text,
  Time,
  to,
  usePoll,
  useState,
  bytes,
  Empty,
} from '../parts.js'; // prettier-ignore

const RANGES = /** @type {[string, string][]} */ ([
  ['hour', 'Hour'],
  ['day', '24 hours'],
  ['month', '30 days'],
]);
const SPANS = /** @type {Record<string, [number, string]>} */ ({
  hour: [3600, 'minute'],
  day: [86_400, 'minute'],
  month: [30 * 86_400, 'hour'],
});
/** How many of the newest jobs the stages and batch sizes are taken from. */
const SAMPLE = 100;
const STAGES = ['queued', 'hold', 'device_wait', 'preprocess', 'inference', 'postprocess'];
const inMs = (/** @type {number} */ n) => duration(n / 1000);

/** @param {{ name: string }} of */
function Charts({ name }) {
  const [range, setRange] = useState('hour');
  const [length, step] = SPANS[range];
  const since = Math.floor(Date.now() / 60_000) * 60 - length;
  const poll = usePoll(apiPath('models', name, 'series'), {
    query: { since: range === 'hour' ? undefined : since, step },
    every: 20_000,
  });
  return html`<${Panel} title="Over time" side=${html`<${Choice} label="Range" options=${RANGES} value=${range} onChange=${setRange} />`}>
    <${Loaded} of=${poll}>${() => {
      const { since: from, step_s, series: s } = poll.data;
      const times = s.submitted.map(
        (/** @type {any} */ _, /** @type {number} */ i) => Date.parse(from) / 1000 + i * step_s,
      );
      const unit = step === 'hour' ? 'an hour' : 'a minute';
      return html`<div class="charts">
        <${Chart} label=${`Jobs ${unit}`} times=${times} lines=${[{ label: `Submitted ${unit}`, values: s.submitted }, { label: 'Succeeded', values: s.succeeded, tone: 'ok' }, { label: 'Failed', values: s.failed, tone: 'bad' }]} />
        <${Chart} label="Latency" times=${times} format=${inMs} lines=${[{ label: 'p50', values: s.p50_ms }, { label: 'p99', values: s.p99_ms }]} />
        <${Chart} label="Waiting jobs" times=${times} lines=${[{ label: 'Waiting', values: s.depth }]} />
        <${Chart} label="Batch size" times=${times} lines=${[{ label: 'Mean batch', values: s.batch_size }]} />
      </div>`;
    }}</${Loaded}></${Panel}>`;
}

/** The middle one of some numbers. @param {number[]} values */
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;

/** Where the time of the newest jobs went, and how large their batches were. @param {{ name: string }} of */
function Sample({ name }) {
  const poll = usePoll(apiPath('jobs'), { query: { model: name, status: 'succeeded', limit: SAMPLE } });
  const jobs = (poll.data?.jobs ?? []).filter((/** @type {any} */ job) => job.timings);
  const times = STAGES.map((stage) => [stage, median(jobs.map((/** @type {any} */ job) => job.timings[stage]))]);
  const most = Math.max(...times.map(([, ms]) => Number(ms)), 1e-6);
  const sizes = Map.groupBy(jobs, (/** @type {any} */ job) => job.batch_size ?? 0);
  const none = html`<${Empty} title="No job has succeeded lately"><a href=${to('/try', { model: name })}>Try the model</a></${Empty}>`;
  const row = (/** @type {string} */ text, /** @type {number} */ share, /** @type {any} */ value) =>
    html`<tr><th scope="row">${text}</th><td class="fill"><${Bar} share=${share} label=${`${text}: ${value}`} /></td><td class="num">${value}</td></tr>`;
  return html`<${Panel} title="Times of stages" side=${`median of ${jobs.length} jobs`}>${
    jobs.length
      ? html`<table class="bars">${times.map(([stage, ms]) => row(String(stage).replace('_', ' '), Number(ms) / most, inMs(Number(ms))))}</table>`
      : none
  }</${Panel}>
    <${Panel} title="Batch sizes" side=${`of the last ${jobs.length} jobs`}>${
      jobs.length
        ? html`<table class="bars">${[...sizes].sort(([a], [b]) => a - b).map(([size, of]) => row(size === 1 ? 'alone' : `${size} together`, of.length / jobs.length, percent(of.length / jobs.length)))}</table>`
        : none
    }</${Panel}>`;
}

/** @param {{ model: any }} of */
const Workers = ({ model }) => html`<${Panel} title="Replicas" side=${`${model.ready_replicas} ready`}>
  <${Table} label="Replicas" rows=${model.workers} id=${(/** @type {any} */ w) => w.worker + w.version} columns=${[
    { name: 'Worker', cell: (/** @type {any} */ w) => html`<span title=${w.worker}>${w.node}</span>` },
    { name: 'State', cell: (/** @type {any} */ w) => html`<${State} of=${w.state} />` },
    { name: 'Version', wide: true, cell: (/** @type {any} */ w) => w.version },
    { name: 'Device', cell: (/** @type {any} */ w) => w.device },
    { name: 'Ready', num: true, cell: (/** @type {any} */ w) => `${w.ready_replicas} of ${w.replicas}` },
    { name: 'Threads', num: true, wide: true, cell: (/** @type {any} */ w) => w.threads || NONE },
    {
      name: 'Memory',
      num: true,
      wide: true,
      cell: (/** @type {any} */ w) => (w.memory_mb ? bytes(w.memory_mb * 2 ** 20) : NONE),
    },
    {
      name: 'Processes',
      wide: true,
      cell: (/** @type {any} */ w) => html`<span class="mono">${w.model_pids.join(' ')}</span>`,
    },
    {
      name: 'Runs',
      wide: true,
      cell: (/** @type {any} */ w) =>
        html`<${Text} text=${[w.variant, w.preprocess && `preprocess in ${w.preprocess}`].filter(Boolean).join('; ')} />`,
    },
  ]} empty=${html`<${Empty} title="No worker serves it">${model.unserved ?? 'Start a worker:'} <code>headrace worker</code></${Empty}>`} />
  ${[...new Set(model.workers.map((/** @type {any} */ w) => w.error).filter(Boolean))].map((error) => html`<div class="body"><${Text} block text=${error} max=${4000} /></div>`)}
</${Panel}>`; // prettier-ignore

/** @param {{ name: string, model: any }} of */
function Versions({ name, model }) {
  const versions = usePoll(apiPath('models', name, 'versions'));
  const traffic = usePoll(apiPath('models', name, 'traffic'));
  const [moved, move] = useState(/** @type {Record<string, number> | null} */ (null));
  const known = versions.data?.versions ?? [];
  const present = /** @type {Record<string, number>} */ (traffic.data?.weights ?? {});
  const given = Object.values(present).some((n) => n > 0);
  const weights = moved ?? (given ? present : { [traffic.data?.default_version]: 1 });
  const sum = Object.values(weights).reduce((a, b) => a + b, 0);
  const share = (/** @type {string} */ version) => (sum ? (weights[version] ?? 0) / sum : 0);
  /** Give a version this share; the others keep their proportions. */
  const slide = (/** @type {string} */ version, /** @type {number} */ to) => {
    const others = known
      .filter((/** @type {any} */ v) => v.version !== version)
      .map((/** @type {any} */ v) => v.version);
    const rest = others.reduce((/** @type {number} */ n, /** @type {string} */ v) => n + share(v), 0);
    move(
      Object.fromEntries([
        [version, to],
        ...others.map((/** @type {string} */ v) => [
          v,
          Math.round((100 - to) * (rest ? share(v) / rest : 1 / others.length) * 10) / 10,
        ]),
      ]),
    );
  };
  const words = Object.keys(weights)
    .filter((v) => share(v) > 0)
    .map((v) => `${percent(share(v))} to ${v}`)
    .join(', '); // prettier-ignore
  const save = async () => {
    const now = await get(apiPath('models', name, 'traffic'));
    const { generation, sticky, shadow, shadow_percent } = now;
    if (JSON.stringify(now.weights) !== JSON.stringify(present)) throw new Error('The traffic has changed meanwhile.');
    const change = { weights, ...(sticky && { sticky }), ...(shadow && { shadow, shadow_percent }) };
    const headers = { 'if-match': `"${generation}"` };
    await send('PUT', apiPath('models', name, 'traffic'), change, { headers });
    move(null);
    traffic.refresh();
    return `Jobs that name no version go ${words}.`;
  };
  const many = known.length > 1;
  return html`<${Panel} title="Versions and traffic" side=${traffic.data?.shadow ? `${traffic.data.shadow} gets copies of ${traffic.data.shadow_percent} %` : ''}>
    <${Fault} error=${versions.error ?? traffic.error} />
    <${Table} label="Versions" rows=${known} id=${(/** @type {any} */ v) => v.version} columns=${[
      {
        name: 'Version',
        cell: (/** @type {any} */ v) =>
          html`<b>${v.version}</b>${v.default && html` <span class="muted">default</span>`}${!v.declared && html` <span class="muted">by the API</span>`}`,
      },
      { name: 'Share', num: true, cell: (/** @type {any} */ v) => percent(share(v.version)) },
      ...(many && can('manage')
        ? [
            {
              name: 'Traffic',
              cell: (
                /** @type {any} */ v,
              ) => html`<input type="range" min="0" max="100" aria-label=${`Share of ${v.version}`} value=${Math.round(share(v.version) * 100)}
        onInput=${(/** @type {any} */ event) => slide(v.version, Number(event.target.value))} />`,
            },
          ]
        : []),
      {
        name: 'Ready',
        num: true,
        cell: (/** @type {any} */ v) =>
          model.workers
            .filter((/** @type {any} */ w) => w.version === v.version)
            .reduce((/** @type {number} */ n, /** @type {any} */ w) => n + w.ready_replicas, 0),
      },
      {
        name: 'Changed',
        wide: true,
        cell: (/** @type {any} */ v) =>
          html`<${Text} text=${
            Object.entries(v.changed)
              .map(([o, x]) => `${o}: ${JSON.stringify(x)}`)
              .join(', ') || NONE
          } />`,
      },
    ]} />
    ${moved && html`<p class="pages"><${Action} label="Apply" kind="primary" run=${save} confirm=${html`<p>Send jobs that name no version ${words}?</p>`} /><button onClick=${() => move(null)}>Take back</button></p>`}
    ${versions.data && html`<p class="muted">${versions.data.change}, by <${Text} text=${versions.data.changed_by} />, <${Time} at=${versions.data.changed_at} /></p>`}
  </${Panel}>`; // prettier-ignore
}

const SHOWN = [
  'handler',
  'device',
  'labels',
  'replicas',
  'min_replicas',
  'max_replicas',
  'total_replicas',
  'weight',
  'max_batch_size',
  'max_batch_delay_ms',
  'allowed_batch_sizes',
  'max_batch_cost',
  'cost',
  'batch_key',
  'max_queue_depth',
  'schedule',
  'timeout_s',
  'max_retries',
  'retry_backoff_s',
]; // prettier-ignore
const plain = (/** @type {any} */ value) =>
  value === null || value?.length === 0 ? NONE : Array.isArray(value) ? value.join(', ') : String(value);

/** @param {{ model: any }} of */
const Options = ({ model }) => html`<${Panel} title="Options">
  <${Facts} of=${SHOWN.map((name) => [name.replace(/_/g, ' '), html`<${Text} text=${plain(model[name])} />`])} />
  ${
    Object.keys(model.parameters).length > 0 &&
    html`<${Table} label="Parameters" rows=${Object.entries(model.parameters)} id=${(/** @type {[string, any]} */ [name]) => name} columns=${[
      { name: 'Parameter', cell: (/** @type {[string, any]} */ [name]) => html`<span class="mono">${name}</span>` },
      { name: 'Type', cell: (/** @type {[string, any]} */ [, p]) => p.type },
      { name: 'Default', cell: (/** @type {[string, any]} */ [, p]) => plain(p.default ?? null) },
      {
        name: 'Meaning',
        wide: true,
        cell: (/** @type {[string, any]} */ [, p]) => html`<${Text} text=${p.description ?? ''} />`,
      },
    ]} />`
  }
</${Panel}>`; // prettier-ignore

/** @param {{ model: any, refresh: () => void }} of */
function Scale({ model, refresh }) {
  const total = model.total_replicas !== null;
  const now = total ? model.total_replicas : model.workers[0]?.replicas || model.replicas;
  const [wanted, setWanted] = useState(/** @type {string | null} */ (null));
  const scale = async () => {
    const n = Number(wanted ?? now);
    await send('PATCH', apiPath('models', model.name), { options: { [total ? 'total_replicas' : 'replicas']: n } });
    refresh();
    return `${model.name} gets ${n} replicas${total ? '' : ' in each worker'}.`;
  };
  return html`<${Action} label="Scale" run=${scale} confirm=${html`<h2>Scale ${model.name}</h2><label>Replicas ${total ? 'in all workers' : 'in each worker'}
    <input type="number" min="0" max="256" value=${wanted ?? now} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label>`} />`;
}

/** @param {{ params: Record<string, string> }} of */
export default function ModelPage({ params }) {
  const name = params.model;
  const path = apiPath('models', name);
  const poll = usePoll(path);
  const demand = usePoll(`${path}/demand`);
  const model = poll.data;
  const refresh = () => {
    poll.refresh();
    demand.refresh();
  };
  const queue = async (/** @type {string} */ verb) => {
    await send('POST', apiPath('queues', model.queue, verb));
    refresh();
    return verb === 'pause' ? 'The queue is paused. Jobs are accepted, and wait.' : 'The queue goes on.';
  };
  const reload = async () => {
    await send('POST', `${path}/reload`);
    refresh();
    return 'New model processes start; the old ones finish what they run.';
  };
  const paused = demand.data?.paused;
  return html`<div class="head"><h1>${name}</h1>
      ${model && html`<${State} of=${paused ? 'paused' : model.state} /><span class="muted">${model.version}</span>`}
      <div class="actions">
        ${can('submit') && html`<a class="button" href=${to('/try', { model: name })}>Try it</a>`}<a class="button" href=${to('/jobs', { model: name })}>Jobs</a>
        ${
          model &&
          html`
          ${paused ? html`<${Action} label="Resume" kind="primary" run=${() => queue('resume')} />` : html`<${Action} label="Pause" run=${() => queue('pause')} confirm=${html`<p>Pause <b>${name}</b>? Workers claim nothing more; running jobs go on.</p>`} />`}
          <${Action} label="Reload" run=${reload} confirm=${html`<p>Start new model processes of <b>${name}</b>? The old ones serve until the new ones are ready.</p>`} />
          ${model.stages ? null : html`<${Scale} model=${model} refresh=${refresh} />`}`
        }
      </div></div>
    <${Loaded} of=${poll}>${() => html`
      ${model.error && html`<div class="fault" role="alert"><b>It cannot be loaded.</b><${Text} block text=${model.error} max=${3000} /></div>`}
      ${model.unserved && html`<p class="fault" role="alert">${model.unserved}</p>`}
      ${
        demand.data &&
        html`<p class="totals"><span>waiting <b>${count(demand.data.queued)}</b></span><span>oldest <b>${duration(demand.data.oldest_age_s)}</b></span>
        <span>running <b>${count(demand.data.in_flight)}</b></span><span>work for one replica <b>${duration(demand.data.seconds)}</b></span><span>ready <b>${model.ready_replicas}</b></span></p>`
      }
      <${Charts} name=${name} />
      <${Workers} model=${model} />
      <${Versions} name=${name} model=${model} />
      <div class="columns"><${Sample} name=${name} /></div>
      ${
        model.stages &&
        html`<${Panel} title="Stages"><${Table} label="Stages" rows=${model.stages} id=${(/** @type {any} */ s) => s.name} columns=${[
          { name: 'Stage', cell: (/** @type {any} */ s) => s.name },
          {
            name: 'Model',
            cell: (/** @type {any} */ s) =>
              html`<a href=${to(`/models/${encodeURIComponent(s.model)}`)}>${s.model}</a>`,
          },
          { name: 'From', cell: (/** @type {any} */ s) => s.from.join(', ') },
        ]} /></${Panel}>`
      }
      <${Options} model=${model} />`}</${Loaded}>`;
}
