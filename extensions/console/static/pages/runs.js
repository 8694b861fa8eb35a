/** Runs and batches: how far each is, what failed, and the cancel. */

import { lines, request, send } from '../api.js';
import {
  Action,
  apiPath,
  Bar,
  Copy,
  count,
  duration,
  Empty,
  Fault,
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
  to,
  usePoll,
  useEffect,
  useState,
} from '../parts.js';

/** How many failed rows are shown. */
const SHOWN = 50;
const OPEN = ['validating', 'in_progress', 'finalizing'];

/** @typedef {any} Row */

/** @param {{ done: number, failed: number, total: number | null }} of */
function Progress({ done, failed, total }) {
  const share = total ? Math.min(1, (done + failed) / total) : 0;
  const text = total
    ? `${percent(share)}, ${count(done + failed)} of ${count(total)}`
    : `${count(done + failed)} so far`;
  return html`<span title=${text}>${text}</span>${total ? html`<br /><${Bar} share=${share} tone=${failed ? 'warn' : ''} label=${text} />` : null}`;
}

const Failed = (/** @type {{ n: number }} */ { n }) => html`<span class=${n ? 'bad-text' : 'muted'}>${count(n)}</span>`;

/** @param {{ of: Row }} of */
const RunState = ({ of: run }) =>
  html`<${State} of=${run.cancel_requested && run.state === 'running' ? 'stopping' : run.state} tone=${run.state === 'lost' ? 'bad' : run.state === 'ended' ? 'ok' : undefined} />`;

/** @param {{ of: Row }} of */
const Run = ({ of: run }) => {
  const again = `headrace runs resume ${run.id} --only-failed`;
  return html`<${Panel} title=${html`Run <${Text} text=${run.name || run.id} max=${80} />`} side=${html`<${RunState} of=${run} /><a class="button" href="#/runs">Close</a>`}>
    ${run.error && html`<p class="fault">${html`<${Text} text=${run.error} max=${1000} />`}</p>`}
    <p>From <span class="mono"><${Text} text=${run.source} /></span> to <span class="mono"><${Text} text=${run.output} /></span> on <${Text} text=${run.host} />, in <span class="mono"><${Text} text=${run.folder} /></span></p>
    ${
      run.failed > 0 &&
      html`<p>${count(run.failed)} rows failed. Each has its error in the output. Run them again there:${' '}
      <code><${Text} text=${again} /></code> <${Copy} text=${again} /></p>`
    }
    ${run.command.length > 0 && html`<p class="muted">Its command: <code><${Text} text=${run.command.join(' ')} max=${500} /></code></p>`}
  </${Panel}>`;
};

/** The first lines of the file with a batch's failed rows. @param {{ batch: Row }} of */
function FailedRows({ batch }) {
  const [state, setState] = useState(/** @type {{ rows?: Row[], error?: any }} */ ({}));
  useEffect(() => {
    const control = new AbortController();
    const read = async () => {
      const rows = [];
      const path = `/v1/files/${encodeURIComponent(batch.error_file_id)}/content`;
      for await (const line of lines(await request('GET', path, { signal: control.signal }))) {
        rows.push(JSON.parse(line));
        if (rows.length === SHOWN) break;
      }
      control.abort();
      setState({ rows });
    };
    if (batch.error_file_id) read().catch((error) => control.signal.aborted || setState({ error }));
    return () => control.abort();
  }, [batch.error_file_id]);
  if (!batch.error_file_id) return html`<p class="muted">Its failed rows are there when it has ended.</p>`;
  const why = (/** @type {Row} */ row) => row.error ?? row.response?.body?.error ?? {};
  return html`<${Fault} error=${state.error} />
    ${
      state.rows
        ? html`<${Table} label="Failed rows" rows=${state.rows} id=${(/** @type {Row} */ row) => row.custom_id} columns=${[
            {
              name: 'Row',
              cell: (/** @type {any} */ row) =>
                html`<span class="mono"><${Text} text=${row.custom_id} max=${60} /></span>`,
            },
            {
              name: 'Code',
              cell: (/** @type {any} */ row) =>
                html`<${Text} text=${why(row).code ?? why(row).type ?? row.response?.status_code ?? NONE} />`,
            },
            {
              name: 'Error',
              cell: (/** @type {any} */ row) => html`<${Text} text=${why(row).message ?? ''} max=${300} />`,
            },
          ]} />`
        : !state.error && html`<p class="loading" role="status">Loading…</p>`
    }
    ${batch.request_counts.failed > SHOWN && html`<p class="muted">These are the first ${SHOWN} of ${count(batch.request_counts.failed)}. The file <span class="mono">${batch.error_file_id}</span> has all.</p>`}`;
}

/** @param {{ of: Row }} of */
const Batch = ({ of: batch }) => html`
  <${Panel} title=${html`Failed rows of <span class="mono">${batch.id}</span>`} side=${html`<${State} of=${batch.status} /><a class="button" href="#/runs">Close</a>`}>
    ${(batch.errors?.data ?? []).map((/** @type {Row} */ error) => html`<p class="fault">${error.line && `Line ${error.line}: `}<${Text} text=${error.message} max=${500} /></p>`)}
    <${FailedRows} key=${batch.id} batch=${batch} />
  </${Panel}>`;

/** @param {Row} run */
const left = (run) =>
  run.state === 'running' && run.total && run.per_second > 0
    ? Math.max(0, run.total - run.succeeded - run.failed) / run.per_second
    : null;

/** @param {{ query: URLSearchParams }} of */
export default function Runs({ query }) {
  const runs = usePoll('/api/v1/runs');
  const batches = usePoll('/v1/batches', { query: { limit: 100 } });
  const run = runs.data?.runs.find((/** @type {Row} */ one) => one.id === query.get('run'));
  const batch = batches.data?.data.find((/** @type {Row} */ one) => one.id === query.get('batch'));
  const cancelRun = async (/** @type {string} */ id) => {
    await send('POST', apiPath('runs', id, 'cancel'));
    runs.refresh();
    return 'The run stops with its next report, and cancels its jobs.';
  };
  const cancelBatch = async (/** @type {string} */ id) => {
    await send('POST', `/v1/batches/${encodeURIComponent(id)}/cancel`);
    batches.refresh();
    return 'The batch is being cancelled. Rows that have ended are kept.';
  };
  /** @type {import('../parts.js').Column[]} */
  const runColumns = [
    {
      name: 'Run',
      cell: (r) =>
        html`<a class="strong" href=${to('/runs', { run: r.id })}><${Text} text=${r.name || r.id} max=${40} /></a>`,
    },
    { name: 'Model', wide: true, cell: (r) => html`<a class="plain" href=${modelPath(r.model)}>${r.model}</a>` },
    {
      name: 'State',
      wide: true,
      cell: (r) => html`<${RunState} of=${r} />`,
    },
    { name: 'Progress', cell: (r) => html`<${Progress} done=${r.succeeded} failed=${r.failed} total=${r.total} />` },
    { name: 'Failed', num: true, by: (r) => r.failed, cell: (r) => html`<${Failed} n=${r.failed} />` },
    { name: 'Rate', num: true, wide: true, cell: (r) => (r.state === 'running' ? `${count(r.per_second)} / s` : NONE) },
    { name: 'Left', num: true, wide: true, cell: (r) => duration(left(r)) },
    {
      name: 'Started',
      num: true,
      wide: true,
      by: (r) => r.started_at,
      cell: (r) => html`<${Time} at=${r.started_at} />`,
    },
    { name: 'Reported', num: true, wide: true, by: (r) => r.told_at, cell: (r) => html`<${Time} at=${r.told_at} />` },
    {
      name: '',
      num: true,
      cell: (r) =>
        r.state === 'running' &&
        html`<${Action} label="Cancel" kind="danger" scope="submit" run=${() => cancelRun(r.id)} confirm=${html`<h2>Cancel this run?</h2><p>${count(r.succeeded + r.failed)} rows have ended and are kept. It can be resumed.</p>`} />`,
    },
  ];
  /** @type {import('../parts.js').Column[]} */
  const batchColumns = [
    {
      name: 'Batch',
      cell: (b) => html`<a class="mono id" href=${to('/runs', { batch: b.id })} title=${b.id}>…${b.id.slice(-12)}</a>`,
    },
    { name: 'For', wide: true, cell: (b) => html`<${Text} text=${b.model ?? b.endpoint} max=${40} />` },
    { name: 'State', wide: true, cell: (b) => html`<${State} of=${b.status} />` },
    {
      name: 'Progress',
      cell: (b) =>
        html`<${Progress} done=${b.request_counts.completed} failed=${b.request_counts.failed} total=${b.request_counts.total} />`,
    },
    {
      name: 'Failed',
      num: true,
      by: (b) => b.request_counts.failed,
      cell: (b) =>
        b.request_counts.failed
          ? html`<a class="bad-text" href=${to('/runs', { batch: b.id })}>${count(b.request_counts.failed)}</a>`
          : html`<${Failed} n=${0} />`,
    },
    {
      name: 'Created',
      num: true,
      wide: true,
      by: (b) => b.created_at,
      cell: (b) => html`<${Time} at=${b.created_at * 1000} />`,
    },
    {
      name: 'Window ends',
      num: true,
      wide: true,
      cell: (b) => html`<${Time} at=${b.expires_at ? b.expires_at * 1000 : null} />`,
    },
    {
      name: '',
      num: true,
      cell: (b) =>
        OPEN.includes(b.status) &&
        html`<${Action} label="Cancel" kind="danger" scope="submit" run=${() => cancelBatch(b.id)} confirm=${html`<h2>Cancel this batch?</h2><p>${count(b.request_counts.completed)} rows have ended and are kept. The others will not run.</p>`} />`,
    },
  ];
  return html`<div class="head"><h1>Runs and batches</h1></div>
    ${run && html`<${Run} of=${run} />`}${batch && html`<${Batch} of=${batch} />`}
    <${Panel} title="Runs"><${Loaded} of=${runs}>${() => html`<${Table} label="Runs" rows=${runs.data.runs} id=${(/** @type {Row} */ r) => r.id} columns=${runColumns}
      empty=${html`<${Empty} title="No run has reported">Run a folder or a file through a model: <code>headrace run MODEL FOLDER -o out.jsonl</code></${Empty}>`} />`}</${Loaded}></${Panel}>
    <${Panel} title="Batches"><${Loaded} of=${batches}>${() => html`<${Table} label="Batches" rows=${batches.data.data} id=${(/** @type {Row} */ b) => b.id} columns=${batchColumns}
      empty=${html`<${Empty} title="There is no batch">Upload a file of requests to <b>/v1/files</b>, then send its id to <b>/v1/batches</b>.</${Empty}>`} />`}</${Loaded}></${Panel}>`;
}
