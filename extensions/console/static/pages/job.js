/** Job: how it went, what came of it, and what can be done about it. */

import { address, can, follow, key, request, send } from '../api.js';
import {
  Action,
  apiPath,
  Bar,
  bytes,
  Copy,
  count,
  duration,
  Facts,
  html,
  Json,
  Loaded,
  modelPath,
  NONE,
  Panel,
  State,
  Table,
  Text,
  Time,
  to,
  usePoll,
  useEffect,
  useState,
  visible,
} from '../parts.js'; // prettier-ignore

const ENDED = ['succeeded', 'failed', 'expired', 'cancelled'];
const STAGES = ['queued', 'hold', 'device_wait', 'preprocess', 'inference', 'postprocess'];
const MEANING = /** @type {Record<string, string>} */ ({
  queued: 'waited in the queue',
  hold: 'waited for others of its batch',
  device_wait: 'waited for the device',
}); // prettier-ignore
/** Results that are longer are shown when they are asked for. */
const PREVIEW_MAX = 1024 * 1024;
/** Types that hold a picture and nothing that runs. */
const IMAGE = /^image\/(png|jpeg|webp|gif|bmp)/;

/** The times of a job or of a stage as a bar, and as numbers below.
 * @param {{ of: any }} of */
function Timeline({ of }) {
  const sum = Math.max(
    of.total ?? 0,
    STAGES.reduce((n, name) => n + of[name], 0),
    1e-6,
  );
  const rest = sum - STAGES.reduce((n, name) => n + of[name], 0);
  const parts = [...STAGES.map((name) => [name, of[name]]), ['other', rest]].filter(([, ms]) => ms > 0);
  return html`<div class="body"><div class="timeline" role="img" aria-label="Times of its stages">
      ${parts.map(([name, ms]) => html`<i class=${name} style=${{ flexGrow: ms / sum }} title=${`${name}: ${duration(ms / 1000)}`}></i>`)}</div>
    <dl class="legend">${parts.map(
      ([name, ms]) => html`<div class=${name} title=${MEANING[name]}><dt>${name.replace('_', ' ')}</dt>
      <dd>${duration(ms / 1000)}<span class="muted"> ${Math.round((ms / sum) * 100)} %</span></dd></div>`,
    )}</dl></div>`;
}

/** The frames of a traceback, the handler's own first, and the text of its last line.
 * @param {string} text */
export function framesOf(text) {
  const frames = [...text.matchAll(/^ {2}File "(.+)", line (\d+), in (.+)\n((?: {4}.*\n)*)/gm)].map(
    ([, file, line, name, code]) => ({
      file,
      line,
      name,
      code: code
        .replace(/^ {4}/gm, '')
        .replace(/^[\s~^]*$/gm, '')
        .trim(),
      foreign: /\/(site-packages|dist-packages|lib\/python[\d.]+)\/|\/headrace\/|\/workers\/model_process\/|^</.test(
        file,
      ),
    }),
  ); // prettier-ignore
  frames.reverse();
  return [...frames.filter((frame) => !frame.foreign), ...frames.filter((frame) => frame.foreign)];
}

/** @param {{ job: any }} of */
function Failure({ job }) {
  const frames = framesOf(job.traceback ?? '');
  const own = frames.filter((frame) => !frame.foreign);
  return html`<${Panel} title=${html`<span class="bad-text">${job.error.type}</span>`} side=${job.error.retryable ? 'another attempt may succeed' : ''} class="failure">
    <div class="body"><${Text} block text=${job.error.message} max=${2000} /></div>
    ${own.length > 0 && html`<ol class="frames">${own.map((frame) => html`<li><code>${frame.code}</code><span class="muted"><${Text} text=${frame.file} /> line ${frame.line}, in <${Text} text=${frame.name} /></span></li>`)}</ol>`}
    ${
      job.traceback &&
      html`<details class="body"><summary>The whole traceback${frames.length > own.length && html` <span class="muted">with ${frames.length - own.length} frames of libraries</span>`}</summary>
      <${Text} block text=${job.traceback} max=${20_000} /></details>`
    }
  </${Panel}>`;
}

/** The shape of nested lists of numbers, such as 3 × 224 × 224; null for anything else.
 * @param {any} value
 * @returns {number[] | null} */
export function shapeOf(value) {
  if (typeof value === 'number' || value === null) return [];
  if (!Array.isArray(value) || !value.length) return null;
  const [inner, ...others] = value.map(shapeOf);
  const same = (/** @type {number[] | null} */ one) => one && `${one}` === `${inner}`;
  return inner && others.every(same) ? [value.length, ...inner] : null;
}

/** Arrays in a value with their shapes, by their places. @param {any} value @returns {[string, number[]][]} */
function arraysOf(value, place = '') {
  const shape = Array.isArray(value) ? shapeOf(value) : null;
  if (shape) return [[place, shape]];
  if (!value || typeof value !== 'object' || Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([name, one]) => arraysOf(one, place ? `${place}.${name}` : name));
}

/** JSON text with line ends, and its arrays; the text itself if it is no JSON. Integers that a script would round, such as
 * ids of 64 bits, stay as they are.
 * @param {string} text @returns {{ text: string, arrays?: [string, number[]][] }} */
function laidOut(text) {
  try {
    const value = JSON.parse(text);
    const arrays = arraysOf(value);
    if (!/\d{16}/.test(text)) return { text: JSON.stringify(value, null, 2), arrays };
    const { parse, rawJSON } = /** @type {any} */ (JSON);
    if (!rawJSON) return { text, arrays };
    const exact = (
      /** @type {string} */ _,
      /** @type {unknown} */ one,
      /** @type {{ source: string }} */ { source },
    ) => (Number.isInteger(one) && !Number.isSafeInteger(one) ? rawJSON(source) : one);
    return { text: JSON.stringify(parse(text, exact), null, 2), arrays };
  } catch {
    return { text };
  }
}

/** What a job has returned, or was given, by its type.
 * @param {{ path: string, name: string, size?: number }} of */
export function Preview({ path, name, size = 0 }) {
  const [state, setState] = useState(/** @type {any} */ ({}));
  const [length, setLength] = useState(size);
  const [wanted, want] = useState(false);
  const asked = wanted || length <= PREVIEW_MAX;
  useEffect(() => {
    if (!asked) return;
    const control = new AbortController();
    let url = '';
    request('GET', path, { signal: control.signal, patient: true })
      .then(async (response) => {
        const kind = response.headers.get('content-type') ?? '';
        if (response.status === 204) return setState({ kind: 'none' });
        const comes = Number(response.headers.get('content-length') ?? 0);
        if (comes > PREVIEW_MAX && !wanted) {
          control.abort();
          return setLength(comes);
        }
        const blob = await response.blob();
        // A page or a drawing with scripts in it must not open at the console's origin.
        const safe = IMAGE.test(kind) ? blob : new Blob([blob], { type: 'application/octet-stream' });
        url = URL.createObjectURL(safe);
        const text = /json|^text\//.test(kind) ? await blob.text() : undefined;
        // Once: a long value would keep the page busy each time that it is drawn.
        const shown = text !== undefined && /json/.test(kind) ? laidOut(text) : { text };
        setState({ kind, url, size: blob.size, ...shown });
      })
      .catch((error) => control.signal.aborted || setState({ error }));
    return () => {
      control.abort();
      URL.revokeObjectURL(url);
    };
  }, [path, asked]);
  if (!asked) return html`<p><button onClick=${() => want(true)}>Load ${bytes(length)}</button></p>`;
  if (state.error) return html`<p class="muted">${state.error.message} ${state.error.remedy}</p>`;
  if (!state.kind) return html`<p class="muted">Loading…</p>`;
  if (state.kind === 'none') return html`<p class="muted">There is none.</p>`;
  const arrays = state.arrays ?? [];
  return html`
    ${arrays.length > 0 && html`<p class="muted">${arrays.slice(0, 8).map((/** @type {[string, number[]]} */ [place, shape]) => html`<span class="chip"><${Text} text=${place || 'array'} max=${40} /> <b>${shape.join(' × ') || 'number'}</b></span> `)}</p>`}
    ${IMAGE.test(state.kind) && html`<p><img class="preview" src=${state.url} alt=${name} /></p>`}
    ${state.text !== undefined && html`<div class="body"><${Text} block text=${state.text} max=${4000} /></div>`}
    <p class="muted">${state.kind.split(';')[0]}, ${bytes(state.size)}. <a href=${state.url} download=${name}>Save</a></p>`;
}

/** The pieces of a stream as one text, or as JSON where they are no text. @param {any[]} pieces */
export const joined = (pieces) =>
  pieces
    .map((piece) =>
      typeof piece === 'string' ? piece : typeof piece?.text === 'string' ? piece.text : JSON.stringify(piece),
    )
    .join('');

/** @param {{ id: string }} of */
function Pieces({ id }) {
  const [state, setState] = useState(/** @type {any} */ ({ pieces: [] }));
  useEffect(() => {
    const control = new AbortController();
    follow(id, setState, control.signal);
    return () => control.abort();
  }, [id]);
  if (!state.pieces.length) return null;
  return html`<${Panel} title="Stream" side=${`${count(state.pieces.length)} pieces${state.missing ? '; the first are not kept any more' : ''}`}>
    <div class="body" aria-live="off"><${Text} block text=${joined(state.pieces)} max=${20_000} /></div></${Panel}>`;
}

/** Why the input of a job that has ended is not shown. */
const INPUT_GONE = /** @type {Record<string, string>} */ ({
  succeeded: 'Inputs are deleted when a job succeeds.',
  cancelled: 'Inputs are deleted when a job is cancelled.',
  expired: 'Inputs are deleted when a job expires.',
});

/** The node of a worker and its host, from the name of its present start: `cpu0@host-1a2b3c4d`.
 * @param {string} worker */
function placeOf(worker) {
  const [node, host] = worker.replace(/-[0-9a-f]{8,12}$/, '').split(/@(.*)/s);
  return { node, host };
}

/** @param {{ of: string }} of */
const Worker = ({ of }) => {
  const { node } = placeOf(of);
  return can('manage')
    ? html`<a href="#/workers" title=${visible(of)}><${Text} text=${node} max=${60} /></a>`
    : html`<span title=${visible(of)}><${Text} text=${node} max=${60} /></span>`;
};

/** The attempts of a job that began more than once, with the workers that had them. @param {{ of: any }} of */
const Attempts = ({ of: job }) => html`<${Panel} title="Attempts">
  <${Table} label="Attempts" rows=${[...job.earlier_attempts, { attempt: job.earlier_attempts.at(-1).attempt + 1, worker: job.worker, last: true }]}
    id=${(/** @type {any} */ a) => a.attempt} columns=${[
      { name: 'Attempt', cell: (/** @type {any} */ a) => count(a.attempt) },
      { name: 'Worker', cell: (/** @type {any} */ a) => html`<${Worker} of=${a.worker} />` },
      {
        name: 'Host',
        cell: (/** @type {any} */ a) => html`<${Text} text=${placeOf(a.worker).host ?? NONE} max=${80} />`,
      },
      {
        name: 'How it ended',
        cell: (/** @type {any} */ a) =>
          a.last ? html`<${State} of=${job.status} />` : html`<span class="muted">without a result</span>`,
      },
    ]} /></${Panel}>`;

/** @param {any} job */
function curl(job) {
  const header = key() ? ` -H "Authorization: Bearer $HEADRACE_API_KEY"` : '';
  return `curl${header} ${address(apiPath('jobs', job.id))}`;
}

/** @param {{ params: Record<string, string> }} of */
export default function JobPage({ params }) {
  const path = apiPath('jobs', params.job);
  const [over, setOver] = useState(false);
  // A job that has ended does not change, unless it is retried.
  const poll = usePoll(path, { every: over ? 15_000 : 1000 });
  const job = poll.data;
  const ended = job && ENDED.includes(job.status);
  useEffect(() => setOver(Boolean(ended)), [ended]);
  const retry = async () => {
    await send('POST', `${path}/retry`);
    poll.refresh();
    return 'The job is in its queue again.';
  };
  const cancel = async () => {
    const { outcome } = await send('DELETE', path);
    poll.refresh();
    return {
      removed: 'It will not run.',
      asked: 'It runs; its result will be discarded.',
      ended: 'It had ended before.',
    }[/** @type {string} */ (outcome)];
  };
  return html`<div class="head"><h1 class="mono">${params.job}</h1>
      ${job && html`<${State} of=${job.status} />`}
      <div class="actions">
        ${job?.status === 'failed' && html`<${Action} label="Retry" run=${retry} kind="primary" title="Return it to its queue, with its id and input" />`}
        ${job && !ended && html`<${Action} label="Cancel" scope="submit" kind="danger" run=${cancel} confirm=${html`<p>Cancel this job? If it runs, its result is discarded.</p>`} />`}
        ${job && html`<${Copy} text=${curl(job)} label="Copy as curl" /><button class="quiet" onClick=${() => print()}>Print</button>`}
      </div></div>
    <${Loaded} of=${poll}>${() => html`
      <${Panel}><${Facts} of=${[
        ['Model', html`<a href=${modelPath(job.model)}>${job.model}</a> <span class="muted">${job.version}</span>`],
        ['Created', html`<${Time} at=${job.created_at} />`],
        ['Started', html`<${Time} at=${job.started_at} />`],
        ...(ended ? [['Ended', html`<${Time} at=${job.finished_at} />`]] : []),
        ...(job.queue_position ? [['Place in the queue', count(job.queue_position)]] : []),
        ...(job.timings ? [['Took', duration(job.timings.total / 1000)]] : []),
        ['Attempts', count(job.attempts)],
        ...(job.batch_size
          ? [['Batch', `${job.batch_size}${job.batch_padding ? ` and ${job.batch_padding} added` : ''}`]]
          : []),
        ...(job.worker
          ? [
              ['Worker', html`<${Worker} of=${job.worker} />`],
              ['Host', html`<${Text} text=${placeOf(job.worker).host ?? NONE} max=${80} />`],
            ]
          : []),
        ...(job.due_at ? [['Due', html`<${Time} at=${job.due_at} />`]] : []),
        ...(job.trace_id ? [['Trace', html`<span class="mono">${job.trace_id}</span>`]] : []),
      ]} />
      ${job.waiting_for && html`<p class="note">${job.waiting_reason ?? (job.waiting_for === 'load' ? 'A worker loads the model.' : 'No worker has the model loaded.')}</p>`}
      ${job.progress && html`<p><${Bar} share=${job.progress.fraction ?? 0} label="Progress" /> ${Math.round((job.progress.fraction ?? 0) * 100)} % <${Text} text=${job.progress.message ?? ''} /></p>`}
      </${Panel}>
      ${job.error && job.status !== 'cancelled' && html`<${Failure} job=${job} />`}
      ${job.timings && html`<${Panel} title="Timeline" side=${html`<a href=${to('/jobs', { model: job.model })}>Other jobs of ${job.model}</a>`}><${Timeline} of=${job.timings} /></${Panel}>`}
      ${
        job.stages &&
        html`<${Panel} title="Stages">${job.stages.map(
          (
            /** @type {any} */ stage,
          ) => html`<p><b>${stage.name}</b> <span class="muted">${stage.model}, ${stage.done} of ${stage.jobs}</span> <${State} of=${stage.status} /></p>
        ${stage.timings && html`<${Timeline} of=${stage.timings} />`}`,
        )}</${Panel}>`
      }
      ${job.earlier_attempts && html`<${Attempts} of=${job} />`}
      ${!ended && html`<${Pieces} id=${job.id} />`}
      <div class="columns">
        ${job.status === 'succeeded' && html`<${Panel} title="Result"><${Preview} path=${`${path}/result`} name="result" size=${job.result_size} /></${Panel}>`}
        <${Panel} title="Input">${
          INPUT_GONE[job.status]
            ? html`<p class="muted">${INPUT_GONE[job.status]}</p>`
            : html`<${Preview} key=${job.queue_position ? 'waits' : 'left'} path=${`${path}/input`} name="input" />`
        }</${Panel}>
        ${job.metadata && html`<${Panel} title="Metadata"><div class="body"><${Json} value=${job.metadata} /></div></${Panel}>`}
      </div>`}</${Loaded}>`;
}
